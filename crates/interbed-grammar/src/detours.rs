//! Ways on from an entry that has begun like an earlier one of its list to one that is not there yet.

use llguidance::Matcher;

use crate::entries::{Entries, Pushed};
use crate::tokens::Tokens;

/// Bytes that may lead away from an earlier entry, those first that mostly do. White space never does.
const TRIED: &[u8] =
    b"a10zAe2-_ ./,\"}]{[:tfn3456789bcdghijklmopqrsuvwxyBCDEFGHIJKLMNOPQRSTUVWXYZ@#$%&'()*+;<=>?\\^`|~!";
/// Most places along earlier entries that are looked at for one token.
const PLACES_MAX: usize = 256;

/// Whether an answer that goes on behind `next` comes to an entry that its list does not have. `matcher` is at the text
/// before `next`, and `entries` behind it. Where that takes too long to tell, it does.
pub(crate) fn is_there(matcher: &Matcher, tokens: &Tokens, next: u32, entries: Entries) -> bool {
    let mut open = vec![(matcher.clone(), next, entries)];
    for _ in 0..PLACES_MAX {
        let Some((mut matcher, next, entries)) = open.pop() else { return false };
        if !matches!(matcher.try_consume_tokens(&[next]), Ok(1)) {
            continue;
        }
        let tried: Vec<u32> = TRIED.iter().filter_map(|&byte| tokens.of_text(&[byte])).collect();
        let mut next = valid(&mut matcher, &tried);
        if next.is_empty() {
            // Within a character, or before one that is not among them.
            let Ok(mask) = matcher.compute_mask() else { return true };
            next = mask.iter().collect();
        }
        for token in next {
            let (text, mut entries) = (tokens.text(token), entries.clone());
            // What is white space to the grammar would be tried without end.
            if !entries.is_in_text() && text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match entries.push(text) {
                Pushed { repeats: true, .. } => {}
                Pushed { completes: true, .. } => return true,
                _ if entries.repeating().next().is_none() => return true,
                _ => open.push((matcher.clone(), token, entries)),
            }
        }
    }
    true
}

/// Those of `tokens` that may come next.
fn valid(matcher: &mut Matcher, tokens: &[u32]) -> Vec<u32> {
    tokens.iter().copied().filter(|&token| matches!(matcher.validate_tokens(&[token]), Ok(1))).collect()
}
