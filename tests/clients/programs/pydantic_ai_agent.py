"""pydantic-ai: it writes the arguments of calls anew."""

from adding import MODEL, add, question
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

agent = Agent(OpenAIChatModel(MODEL), instructions="Be terse.", tools=[add])
print(agent.run_sync(question()).output)
