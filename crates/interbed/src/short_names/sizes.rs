//! Sizes of models in tags of short names, and models of about a size.

/// The families of models for conversations, of which one is proposed for a model that cannot be computed.
const FAMILIES: [&str; 6] = ["smollm2", "llama3.2", "llama3.1", "llama3.3", "qwen3", "gpt-oss"];

/// The maximum number of models that are proposed.
const PROPOSED_MAX: usize = 2;

/// The maximum factor between the sizes of the asked model and of a proposed one, except for the nearest.
const FACTOR_MAX: f64 = 2.5;

/// Parses the number of parameters at the beginning of a tag such as `270m`, `27b-it-qat` or `e4b`, and returns it in
/// millions. Returns `None` if the tag does not begin with a number of parameters.
pub fn millions(tag: &str) -> Option<f64> {
    let part = tag.split('-').next()?;
    // `e4b` is a model with as many effective parameters as one of 4b.
    let part = part.strip_prefix('e').unwrap_or(part);
    let (number, factor) = match (part.strip_suffix('m'), part.strip_suffix('b')) {
        (Some(number), _) => (number, 1.0),
        (_, Some(number)) => (number, 1000.0),
        _ => return None,
    };
    let is_number = number.starts_with(|first: char| first.is_ascii_digit());
    number.parse::<f64>().ok().filter(|&number| is_number && number > 0.0).map(|number| number * factor)
}

/// Returns at most two chat models among `names`: those whose numbers of parameters are closest to `asked`, which is in
/// millions. The closest model comes first.
pub fn of_about(names: impl Iterator<Item = String>, asked: f64) -> Vec<String> {
    let sized = names.filter_map(|name| {
        let (family, tag) = name.split_once(':')?;
        let is_meant = FAMILIES.contains(&family) && !tag.contains('-');
        let factor = (millions(tag)? / asked).ln().abs();
        is_meant.then_some((factor, name))
    });
    let mut sized: Vec<(f64, String)> = sized.collect();
    sized.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let near = sized.into_iter().enumerate().filter(|(place, (factor, _))| *place == 0 || *factor <= FACTOR_MAX.ln());
    near.map(|(_, (_, name))| name).take(PROPOSED_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_from_tags() {
        for (tag, size) in [
            ("270m", Some(270.0)),
            ("27b-it-qat", Some(27_000.0)),
            ("1.5b", Some(1500.0)),
            ("e4b", Some(4000.0)),
            ("latest", None),
            ("8x7b", None),
            ("infb", None),
            ("0b", None),
            ("", None),
        ] {
            assert_eq!(millions(tag), size, "{tag}");
        }
    }

    #[test]
    fn the_nearest_are_proposed_and_none_that_is_far_beside_a_near_one() {
        let names = ["qwen3:4b", "qwen3:4b-instruct", "qwen3", "smollm2:360m", "llama3.2:3b", "qwq:4b"];
        let proposed = |asked| of_about(names.iter().map(|name| (*name).to_owned()), asked);
        assert_eq!(proposed(4300.0), ["qwen3:4b", "llama3.2:3b"]);
        assert_eq!(proposed(270.0), ["smollm2:360m"]);
        assert_eq!(proposed(1e6), ["qwen3:4b"]);
    }
}
