// The library that draws: preact with htm, a classic script before this module. Text always becomes a text node.
export const { html, render, useState, useEffect, useLayoutEffect, useRef, useMemo } = htmPreact;
