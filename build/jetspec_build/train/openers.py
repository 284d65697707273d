"""First words of the user turns that the target completes by itself; they only steer the variety of its questions."""

OPENERS = (
    "", "", "", "",
    "Write a Python function that", "Write a Python function to", "Complete the following Python function:\n\ndef ",
    "Complete this code:\n\nfrom typing import List\n\n\ndef ", "Here is my code:\n```python\n", "Fix the bug in this function:\n```python\ndef ",
    "Implement a class in Python for", "Write a short program that", "Explain what this code does:\n```python\n",
    "Write a SQL query that", "Write a JavaScript function that", "Write a C++ program to", "What is the time complexity of",
    "How do I sort", "Write a regular expression that", "Write unit tests for",
    "Solve this problem step by step: A", "Solve step by step: Tom has", "Maria buys", "A train travels", "A store sells",
    "If a rectangle has", "There are", "Sarah earns", "How many", "A farmer has", "John reads", "A baker makes", "Lisa saves",
    "What is the sum of", "Solve for x:", "Calculate", "Find the area of", "A class has", "Each week, Ben", "Convert",
    "Prove that", "What is the probability", "A car uses", "Anna is twice as old as",
    "Explain", "Explain to a child", "What is", "What are the main", "Why do", "Why is", "How does", "How can I", "How do you",
    "Describe", "Summarize the following text:", "Compare", "List five", "List three reasons", "Give me tips for",
    "Write an email to", "Write a poem about", "Write a story about", "Write a blog post about", "Write a product description for",
    "Write a cover letter for", "Write a persuasive", "Write a dialogue between", "Imagine you are", "Pretend to be",
    "You are a", "Act as", "I am planning", "I need help with", "Help me", "Can you", "Could you explain", "Tell me about",
    "Translate", "Rewrite the following sentence", "Correct the grammar:", "Classify", "Extract the", "Edit the following paragraph",
    "What would happen if", "Who was", "When did", "Where is", "Which is better,", "Discuss", "Analyze", "Create a plan for",
    "Draft a", "Design a", "Suggest", "Recommend", "Outline", "What are the differences between", "What do you think about",
    "Define", "Give an example of", "How would you", "Provide a step-by-step guide", "Generate a list of", "Identify",
)
