"""openai-agents as it comes: it speaks to the endpoint of responses."""

from adding import MODEL, add, question
from agents import Agent, Runner, function_tool, set_tracing_disabled

# Traces would be sent to OpenAI.
set_tracing_disabled(True)
agent = Agent(name="adder", instructions="Be terse.", model=MODEL, tools=[function_tool(add)])
print(Runner.run_sync(agent, question()).final_output)
