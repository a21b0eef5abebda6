"""Guess a digit from 1 to 8 in four turns. The program only knows OPENAI_BASE_URL, not the trainer: it reads one row
per line from standard input and writes one reward per line.
"""

import json
import sys

from openai import OpenAI

client = OpenAI()


def play(row: dict, client: OpenAI) -> float:
    secret, messages = int(row["answer"]), [{"role": "user", "content": row["prompt"]}]
    for _ in range(4):
        answer = client.chat.completions.create(model="policy", messages=messages).choices[0].message.content.strip()
        guess = int(answer) if answer in set("12345678") else None
        if guess == secret:
            return 1.0
        hint = "!" if guess is None else "<" if secret < guess else ">"
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": hint}]
    return 0.0


for line in sys.stdin:
    row = json.loads(line)
    print(json.dumps({"reward": play(row, client.with_options(api_key=row["api_key"]))}), flush=True)
