"""A corpus that small tokenizers are trained on, and a chat template in ChatML."""

CORPUS = [
    "Question: What is 7 * 8?\nAnswer: 56\n",
    "A tokenizer turns text into numbers; the numbers of a prompt must be those of the model's training.\n",
    "The larger number is replaced by the difference, until both are equal.\n\n    return a, b - a\n",
    "Käse kostet 12,50 €, naïve façade, 数学は楽しい, and an emoji 🙂 or two 🙃🙂.\n",
]


CHATML = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
