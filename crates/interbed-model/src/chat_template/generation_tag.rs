//! `{% generation %} … {% endgeneration %}` marks what an assistant wrote, for training; a rendering ignores it.

/// The source with both tags turned into statements that do nothing and keep the white space around them as it was.
pub(super) fn removed(source: &str) -> String {
    let mut output = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        output.push_str(&rest[..start]);
        rest = &rest[start..];
        match tag(rest) {
            Some((replacement, length)) => {
                output.push_str(&replacement);
                rest = &rest[length..];
            }
            None => {
                output.push_str("{%");
                rest = &rest[2..];
            }
        }
    }
    output + rest
}

/// The replacement for the tag at the start of `source`, and the tag's length.
fn tag(source: &str) -> Option<(String, usize)> {
    let inner = source.strip_prefix("{%")?;
    let end = inner.find("%}")?;
    let inner = &inner[..end];
    let (left, inner) = marker(inner, str::strip_prefix);
    let (right, inner) = marker(inner, str::strip_suffix);
    let statement = match inner.trim() {
        "generation" => "if true",
        "endgeneration" => "endif",
        _ => return None,
    };
    Some((format!("{{%{left} {statement} {right}%}}"), end + 4))
}

/// Splits off a `-` or `+` that controls white space.
fn marker<'a>(inner: &'a str, strip: impl Fn(&'a str, &'static str) -> Option<&'a str>) -> (&'static str, &'a str) {
    for marker in ["-", "+"] {
        if let Some(inner) = strip(inner, marker) {
            return (marker, inner);
        }
    }
    ("", inner)
}
