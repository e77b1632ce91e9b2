//! Tests names, ranges, and response headers.

use std::time::Duration;

use interbed_hub::{HubName, NameProblem, content_range, ranges, retry_after, safe_path};

fn read(text: &str) -> Option<(String, Option<String>, Option<String>)> {
    HubName::read(text).map(|name| (name.repository(), name.revision.clone(), name.tag.clone()))
}

#[test]
fn names_are_read() {
    let plain = |name: &str| Some((name.to_owned(), None, None));
    for text in [
        "org/name",
        "hf.co/org/name",
        "huggingface.co/org/name",
        "https://huggingface.co/org/name/",
        "hf:org/name",
        "hf://org/name",
        "https://huggingface.co/org/name/tree/main",
    ] {
        assert_eq!(read(text), plain("org/name"), "{text}");
    }
    let with = |revision: Option<&str>, tag: Option<&str>| {
        Some(("Org_1/na.me-2".to_owned(), revision.map(str::to_owned), tag.map(str::to_owned)))
    };
    assert_eq!(read("Org_1/na.me-2:Q4_K_M"), with(None, Some("Q4_K_M")));
    assert_eq!(read("Org_1/na.me-2@v1.0"), with(Some("v1.0"), None));
    assert_eq!(read("Org_1/na.me-2@refs/pr/1"), with(Some("refs/pr/1"), None));
    assert_eq!(read("Org_1/na.me-2@v1:Q8_0"), with(Some("v1"), Some("Q8_0")));
    assert_eq!(read("hf.co/Org_1/na.me-2:Q8_0@v1"), with(Some("v1"), Some("Q8_0")));
    assert_eq!(read("Org_1/na.me-2:sub/file-Q8_0.gguf"), with(None, Some("sub/file-Q8_0.gguf")));
    assert_eq!(HubName::read("org/name").unwrap().revision(), "main");
}

#[test]
fn addresses_of_files_are_read() {
    let file = |revision: Option<&str>, file: &str| {
        Some(("org/name".to_owned(), revision.map(str::to_owned), Some(file.to_owned())))
    };
    for text in [
        "https://huggingface.co/org/name/resolve/main/x-Q4_K_M.gguf",
        "https://huggingface.co/org/name/resolve/main/x-Q4_K_M.gguf?download=true",
        "https://hf.co/org/name/blob/main/x-Q4_K_M.gguf",
        "hf://org/name/x-Q4_K_M.gguf",
        "org/name/x-Q4_K_M.gguf",
    ] {
        assert_eq!(read(text), file(None, "x-Q4_K_M.gguf"), "{text}");
    }
    let deep = "https://huggingface.co/org/name/blob/v1/sub/x-00001-of-00002.gguf";
    assert_eq!(read(deep), file(Some("v1"), "sub/x-00001-of-00002.gguf"));
    assert_eq!(read("hf.co/org/name/tree/v1"), Some(("org/name".to_owned(), Some("v1".to_owned()), None)));
    for text in [
        "https://huggingface.co/org/name/resolve/main/model.safetensors",
        "https://huggingface.co/org/name/blob/../x.gguf",
        "https://huggingface.co/org/name/resolve/main/../x.gguf",
        "https://huggingface.co/datasets/org/name",
        "https://example.org/org/name/x.gguf",
        "org/name/sub/",
        "./org/name/x.gguf",
        "/org/name/x.gguf",
        "../org/name/x.gguf",
        "s3://bucket/x.gguf",
    ] {
        assert_eq!(read(text), None, "{text}");
    }
}

#[test]
fn paths_and_rubbish_are_no_names() {
    for text in [
        "",
        "name",
        "/org/name",
        "./org/name",
        "../name",
        "a/b/c",
        "org/",
        "/name",
        "C:/model",
        "org/na me",
        "org/../x",
        "org/name.gguf",
        "models/8b.interbed",
        "x/config.json",
        "org/name:",
        "org/name@",
        "org/name@a@b",
        "org/name:a:b",
        "org/name@../x",
        "org/name@a..b",
        "org/name@/x",
        "org/name:..",
        "org/name:../x",
        "-org/name",
        "org/.name",
        "org/na--me",
        "or--g/name",
        "org/nam\u{e9}",
        "hf.co/org",
        "hf.co/org:Q4_0",
        "org/name@.hidden",
        "org\\name",
    ] {
        assert_eq!(read(text), None, "{text:?}");
    }
    assert_eq!(read(&format!("org/{}", "n".repeat(97))), None);
    assert_eq!(read(&format!("org/name@{}", "n".repeat(256))), None);
}

#[test]
fn a_revision_may_stand_beside_a_name_but_not_two() {
    let name = |text| HubName::read(text).unwrap();
    assert_eq!(name("org/name").at(Some("v1")).unwrap().revision(), "v1");
    assert_eq!(name("org/name@v1").at(Some("v1")).unwrap().revision(), "v1");
    assert_eq!(name("org/name@v1").at(None).unwrap().revision(), "v1");
    assert!(matches!(name("org/name@v1").at(Some("v2")), Err(NameProblem::TwoRevisions { .. })));
    assert!(matches!(name("org/name").at(Some("../../x")), Err(NameProblem::Revision { .. })));
}

#[test]
fn paths_from_servers_stay_inside() {
    for path in ["a", "a/b.c", "model-00001-of-00002.safetensors", "1_Pooling/config.json", ".gitattributes"] {
        assert!(safe_path(path), "{path}");
    }
    for path in ["", "/a", "a/", "a//b", "..", "../a", "a/../b", "a/./b", "a\\b", "c:a", "a\0b", "a\nb", "x.incomplete"]
    {
        assert!(!safe_path(path), "{path:?}");
    }
    assert!(!safe_path(&"a/".repeat(600)) && !safe_path(&"a".repeat(256)));
}

#[test]
fn ranges_cover_what_is_missing_once() {
    assert_eq!(ranges(0, 10, 4).collect::<Vec<_>>(), [0..4, 4..8, 8..10]);
    assert_eq!(ranges(9, 10, 4).collect::<Vec<_>>(), vec![9..10]);
    assert_eq!(ranges(10, 10, 4).count() + ranges(11, 10, 4).count() + ranges(0, 0, 4).count(), 0);
    assert_eq!(ranges(u64::MAX - 1, u64::MAX, 4).collect::<Vec<_>>(), vec![u64::MAX - 1..u64::MAX]);
}

#[test]
fn headers_are_read() {
    assert_eq!(content_range("bytes 0-9/100"), Some((0..10, Some(100))));
    assert_eq!(content_range(" bytes 5-5/*"), Some((5..6, None)));
    for bad in
        ["", "bytes */100", "bytes 5-4/100", "bytes 0-100/100", "items 0-9/100", "bytes 0-18446744073709551615/*"]
    {
        assert_eq!(content_range(bad), None, "{bad:?}");
    }
    assert_eq!(retry_after(" 3 "), Some(Duration::from_secs(3)));
    assert_eq!(retry_after("Wed, 21 Oct 2026 07:28:00 GMT"), None);
}
