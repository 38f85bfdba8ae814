"""rtlang: a language for LLM programs, and the radix-cache runtime that serves them."""
