"""Text search: texts that explain a gradient and that a language model finds likely."""
