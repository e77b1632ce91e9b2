//! Tests settings from environment variables.

use std::fs;
use std::path::Path;

use interbed_hub::{HubSettings, SettingsProblem};

fn of(variables: &[(&str, &str)]) -> Result<HubSettings, SettingsProblem> {
    let get = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    HubSettings::from_variables(&get)
}

#[test]
fn the_first_variable_that_is_set_names_the_cache() {
    let all = [
        ("HF_HUB_CACHE", "/a"),
        ("HUGGINGFACE_HUB_CACHE", "/b"),
        ("HF_HOME", "/c"),
        ("XDG_CACHE_HOME", "/d"),
        ("HOME", "/e"),
    ];
    let expect = ["/a", "/b", "/c/hub", "/d/huggingface/hub", "/e/.cache/huggingface/hub"];
    for (index, expect) in expect.iter().enumerate() {
        assert_eq!(of(&all[index..]).unwrap().cache, Path::new(expect));
    }
    assert_eq!(of(&[]).unwrap_err(), SettingsProblem::NoCache);
    assert_eq!(of(&[("HF_HUB_CACHE", " "), ("HOME", "/e")]).unwrap().cache, Path::new(expect[4]));
}

#[test]
fn the_token_is_that_of_the_variable_or_of_a_file_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().to_str().unwrap();
    fs::write(folder.path().join("token"), "hf_home\n").unwrap();
    fs::write(folder.path().join("other"), "hf_other").unwrap();
    let other = folder.path().join("other");
    let all = [("HF_TOKEN", "hf_given"), ("HF_TOKEN_PATH", other.to_str().unwrap()), ("HF_HOME", home)];
    for (index, expect) in ["hf_given", "hf_other", "hf_home"].iter().enumerate() {
        let settings = of(&all[index..]).unwrap();
        assert_eq!(settings.token.as_deref(), Some(*expect));
        assert!(!format!("{settings:?}").contains("hf_"));
    }
    assert_eq!(of(&[("HOME", "/nowhere")]).unwrap().token, None);
    let bad = of(&[("HF_TOKEN", "a\nb"), ("HOME", "/e")]).unwrap_err();
    assert!(bad.to_string().contains("HF_TOKEN") && !bad.to_string().contains("a\nb"));
}

#[test]
fn a_tilde_is_the_home() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("secret"), "hf_mine").unwrap();
    let home = ("HOME", home.path().to_str().unwrap());
    let cache = |name, value| of(&[(name, value), home]).unwrap().cache;
    assert_eq!(cache("HF_HUB_CACHE", "~/a"), Path::new(home.1).join("a"));
    assert_eq!(cache("HF_HOME", "~/a"), Path::new(home.1).join("a/hub"));
    assert_eq!(cache("HF_HOME", "/~/a"), Path::new("/~/a/hub"));
    assert_eq!(of(&[("HF_HOME", "~/a")]).unwrap().cache, Path::new("~/a/hub"));
    assert_eq!(of(&[("HF_TOKEN_PATH", "~/secret"), home]).unwrap().token.as_deref(), Some("hf_mine"));
    // A file that is not text contains no token.
    fs::write(Path::new(home.1).join("secret"), [0xff]).unwrap();
    assert_eq!(of(&[("HF_TOKEN_PATH", "~/secret"), home]).unwrap().token, None);
}

#[test]
fn the_endpoint_is_an_address() {
    let endpoint = |value| of(&[("HF_ENDPOINT", value), ("HOME", "/e")]).map(|settings| settings.endpoint);
    assert_eq!(endpoint("").as_deref(), Ok("https://huggingface.co"));
    assert_eq!(endpoint("https://mirror.example/hub/").as_deref(), Ok("https://mirror.example/hub"));
    for bad in ["mirror.example", "ftp://mirror.example", "http://", "https://a/?b"] {
        assert!(matches!(endpoint(bad), Err(SettingsProblem::Endpoint { .. })), "{bad}");
    }
    let offline = |value| of(&[("HF_HUB_OFFLINE", value), ("HOME", "/e")]).unwrap().offline;
    assert!(offline("1") && offline("True") && offline("yes") && offline("ON"));
    assert!(!offline("0") && !offline("") && !offline("no"));
}
