"""A reward computed from the text of a random model, so that completions of one prompt differ."""

import zlib


def score(queries: list[str], prompts: list[str], labels: list[str]) -> list[float]:
    return [zlib.crc32(query.encode()) % 8 / 8 for query in queries]
