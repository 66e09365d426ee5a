use multiway_core::mphttp::download::{Ask, PartHead};
use multiway_core::mphttp::http::{
    BodyLength, ByteRange, Mismatch, Refusal, Representation, RequestHead, ResponseHead, refusal,
    same_representation,
};

/// What an answer to a range request means to the core.
pub(super) fn judge(
    known: &Representation,
    ask: Ask,
    request: &RequestHead,
    head: &ResponseHead,
) -> Result<PartHead, Mismatch> {
    let asked = match ask {
        Ask::Part { start, end } => ByteRange::Closed { first: start, last: end.saturating_sub(1) },
        Ask::Suffix { length } => ByteRange::Suffix { length },
        // A first request repeated on another path lost the race; its answer is not needed.
        Ask::AsClient => return Ok(PartHead::Different),
    };
    Ok(match refusal(head) {
        Some(Refusal::RangeIgnored { status: 200 }) if head.content_length() == Some(known.total) => {
            PartHead::Whole { total: known.total }
        }
        Some(Refusal::Busy { retry_after, .. }) => PartHead::Refused { retry_after },
        Some(Refusal::Failed { .. }) => PartHead::Refused { retry_after: None },
        Some(_) => PartHead::Different,
        None => {
            let answer = same_representation(known, head, asked)?;
            PartHead::Part {
                start: answer.span.start,
                end: answer.span.end,
                // Ranges are asked for without the client's `Connection`: the server alone decides.
                reusable: head.wants_persistence()
                    && head.body_length(request.method()) != BodyLength::UntilClose,
            }
        }
    })
}
