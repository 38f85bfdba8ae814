"""What OpenAI's endpoints are sent and what they answer: bodies, fields, events."""
