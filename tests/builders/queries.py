"""A model's queries in a journal, and what was proposed."""

from pike_hpc.records import Proposal, Proposed, QueryAnswered, QueryReserved, Usage


def reserved(
    query_id: str, node: str, role: str = "optimise", *, usd: float = 0.0
) -> QueryReserved:
    return QueryReserved(
        query_id=query_id, node=node, role=role, model="m", prompt_digest="d", max_cost_usd=usd
    )


def answered(
    query_id: str, text: str = "", *, usd: float = 0.0, tokens: tuple[int, int] = (0, 0)
) -> QueryAnswered:
    usage = Usage(model="m", input_tokens=tokens[0], output_tokens=tokens[1], cost_usd=usd)
    return QueryAnswered(query_id=query_id, text=text, finish_reason="stop", usage=usage)


def proposed(
    node: str, candidate_id: str, source: str, *, operator: str = "optimise", **place: object
) -> Proposed:
    proposal = Proposal(candidate_id=candidate_id, operator=operator, **place)
    return Proposed(node=node, proposal=proposal, source=source)
