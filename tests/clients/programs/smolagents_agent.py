"""smolagents: it shows the policy its calls as prose, and ends by a tool, `final_answer`."""

from adding import MODEL, add, question
from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

agent = ToolCallingAgent(tools=[tool(add)], model=OpenAIModel(MODEL), verbosity_level=LogLevel.OFF)
print(agent.run(question()))
