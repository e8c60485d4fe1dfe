"""The endpoint at which agents reach the policy: OpenAI chat completions and responses, Anthropic messages."""
