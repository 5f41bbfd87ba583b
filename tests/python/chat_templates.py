"""Small chat templates with the Jinja features of ten model families, and random conversations for them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

# Each is written for these tests; it has the control tokens and the structure of its family.
TEMPLATES = {
    "chatml": """
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
""",
    "llama2": """
{%- set system = messages[0].content if messages[0].role == 'system' else none %}
{%- for message in (messages[1:] if system is not none else messages) %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate, found ' ~ message.role) }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {%- set text = '<<SYS>>\n' ~ system ~ '\n<</SYS>>\n\n' ~ message.content if loop.first and system else message.content %}
        {{- bos_token + '[INST] ' + text.strip() + ' [/INST]' }}
    {%- else %}
        {{- ' ' ~ message.content.strip() ~ ' ' ~ eos_token }}
    {%- endif %}
{%- endfor %}""",
    "llama3": """
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' ~ message['role'] ~ '<|end_header_id|>\n\n' ~ message['content'] | trim ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}""",
    "mistral": """
{{- bos_token }}
{%- set ns = namespace(system='') %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- set ns.system = message.content ~ '\n\n' %}
    {%- elif message.role == 'user' %}
        {{- '[INST] ' ~ (ns.system if loop.last else '') ~ message.content ~ '[/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' ~ message.content ~ eos_token }}
    {%- else %}
        {{- raise_exception('Only user and assistant roles, found ' + message.role) }}
    {%- endif %}
{%- endfor %}""",
    "gemma": """
{{ bos_token }}{% for message in messages %}
{% if message['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}""",
    "phi3": """{% for message in messages %}
{% if message['role'] in ['system', 'user', 'assistant'] %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% else %}{% continue %}{% endif %}
{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n' + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "deepseek": """
{%- macro turn(name, text) -%}{{ '<｜' ~ name ~ '｜>' ~ text }}{%- endmacro %}
{%- set systems = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | join('\n\n') %}
{{- bos_token ~ systems }}
{%- for message in messages | rejectattr('role', 'equalto', 'system') %}
    {%- if message.role == 'user' %}{{ turn('User', message.content) }}
    {%- elif message.role == 'assistant' %}{{ turn('Assistant', message.content.split('</think>')[-1]) ~ '<｜end▁of▁sentence｜>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}""",
    "qwen3": """
{%- if tools is not none and tools %}{{- raise_exception('no tools') }}{% endif %}
{%- set ns = namespace(last=messages | length - 1, found=false) %}
{%- for message in messages[::-1] %}
    {%- if not ns.found and message.role == 'user' and message.content is string and not message.content.startswith('<tool_response>') %}
        {%- set ns.found = true %}
        {%- set ns.last = messages | length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set text = message.content %}
    {%- if message.role == 'assistant' and loop.index0 > ns.last %}
        {%- set text = '<think>\n\n</think>\n\n' ~ text.lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\n' ~ text ~ '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}""",
    "command-r": """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system = messages[0]['content'] | tojson %}
{%- else %}{% set loop_messages = messages %}{% set system = false %}{% endif %}
{%- if system != false %}{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system + '<|END_OF_TURN_TOKEN|>' }}{% endif %}
{%- for message in loop_messages %}
    {%- set content = message['content'] %}
    {%- if message['role'] == 'user' %}
        {{- '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}
    {%- elif message['role'] == 'assistant' %}
        {{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}""",
}
# The text that ends an answer.
ENDS = {
    "chatml": "<|im_end|>",
    "llama2": "<|endoftext|>",
    "llama3": "<|eot_id|>",
    "mistral": "<|endoftext|>",
    "gemma": "<end_of_turn>",
    "phi3": "<|end|>",
    "zephyr": "<|endoftext|>",
    "deepseek": "<｜end▁of▁sentence｜>",
    "qwen3": "<|im_end|>",
    "command-r": "<|END_OF_TURN_TOKEN|>",
}
SPECIAL = {"bos_token": "<|im_start|>", "eos_token": "<|endoftext|>"}

_WORDS = st.sampled_from(
    ["def", " index", "\n", "\n\n", "路由", "🦆", "<|im_end|>", "<tool>", "{{ 1 }}", "{% if %}", '"', "\\", "  ", "é", "<b>", "</think>"]
)  # fmt: skip
_TEXTS = st.lists(_WORDS, max_size=6).map("".join)


@st.composite
def conversations(draw: st.DrawFn, *, max_turns: int = 3, whole: bool = False) -> list[dict[str, Any]]:
    """Alternating messages that end with the user's or, if `whole`, with either; some begin with the system's."""
    messages = [{"role": "system", "content": draw(_TEXTS)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, max_turns - 1))):
        messages += [
            {"role": "user", "content": draw(_TEXTS)},
            {"role": "assistant", "content": draw(_TEXTS)},
        ]
    messages.append({"role": "user", "content": draw(_TEXTS)})
    if whole and draw(st.booleans()):
        messages.append({"role": "assistant", "content": draw(_TEXTS)})
    return messages
