"""langgraph with langchain-openai: a graph of a model and tools; it writes the arguments of calls anew."""

from adding import MODEL, add, question
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

model = ChatOpenAI(model=MODEL).bind_tools([add])


def say(state: MessagesState) -> MessagesState:
    return {"messages": [model.invoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("say", say)
graph.add_node("tools", ToolNode([add]))
graph.add_edge(START, "say")
graph.add_conditional_edges("say", tools_condition)
graph.add_edge("tools", "say")
print(graph.compile().invoke({"messages": [("user", question())]})["messages"][-1].content)
