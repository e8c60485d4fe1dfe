"""openai-agents over chat completions."""

from adding import MODEL, add, question
from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

# Traces would be sent to OpenAI.
set_tracing_disabled(True)
set_default_openai_api("chat_completions")
agent = Agent(name="adder", instructions="Be terse.", model=MODEL, tools=[function_tool(add)])
print(Runner.run_sync(agent, question()).final_output)
