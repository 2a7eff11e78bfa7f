"""What of a prompt a model may take for an instruction."""


def outside_fences(text: str) -> str:
    """The prompt without its fenced blocks, as CommonMark delimits them."""
    kept: list[str] = []
    fence = ""
    for line in text.split("\n"):
        ticks = len(line) - len(line.lstrip("`"))
        if not fence and ticks >= 3:
            fence = line[:ticks]
        elif fence and ticks >= len(fence) and not line.strip("`").strip():
            fence = ""
        elif not fence:
            kept.append(line)
    assert not fence, "a fence is left open"
    return "\n".join(kept)
