//! Tests the layout of the cache, and its listing.

use std::fs;

use interbed_hub::testing::{COMMIT, FileContent, LocalHub};
use interbed_hub::{Hub, HubCache, HubName, HubSettings};

#[test]
fn it_lies_as_other_programs_expect() {
    let (hub, folder) = (LocalHub::start(), tempfile::tempdir().unwrap());
    let (config, weights) = (b"{}".to_vec(), vec![7; 3 << 20]);
    hub.add("org/name", "config.json", FileContent::Bytes(config.clone()), false);
    hub.add("org/name", "1_Pooling/config.json", FileContent::Bytes(b"[]".to_vec()), false);
    hub.add("org/name", "model.safetensors", FileContent::Bytes(weights.clone()), true);
    let root = folder.path().join("hub");
    let settings = HubSettings { endpoint: hub.endpoint(), token: None, cache: root.clone(), offline: false };
    let opened = Hub::open(&settings).unwrap();
    let name = HubName::read("org/name").unwrap();
    let found = opened.find(&name).unwrap();
    // A process with the same id, as in another container, may be about to use these names.
    let pid = std::process::id();
    (0..1000).for_each(|count| fs::create_dir_all(found.folder().join(format!(".{pid}-{count}.new"))).unwrap());
    let told = std::sync::atomic::AtomicI64::new(0);
    found.fetch(&|bytes| _ = told.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed)).unwrap();
    assert_eq!(told.into_inner() as u64, found.bytes());

    let model = root.join("models--org--name");
    assert_eq!(fs::read_to_string(model.join("refs/main")).unwrap(), COMMIT);
    let snapshot = model.join("snapshots").join(COMMIT);
    assert_eq!(found.path(), snapshot);
    for (path, content, up) in [
        ("config.json", &config, "../../blobs"),
        ("1_Pooling/config.json", &b"[]".to_vec(), "../../../blobs"),
        ("model.safetensors", &weights, "../../blobs"),
    ] {
        let digest = hub.digest("org/name", path);
        assert_eq!(fs::read_link(snapshot.join(path)).unwrap(), std::path::Path::new(up).join(&digest));
        assert_eq!(&fs::read(snapshot.join(path)).unwrap(), content);
        assert_eq!(digest.len(), if path == "model.safetensors" { 64 } else { 40 });
        assert!(root.join(".locks/models--org--name").join(format!("{digest}.lock")).is_file());
    }
    // The digest is the result of `git hash-object` for two characters.
    assert_eq!(hub.digest("org/name", "config.json"), "9e26dfeeb6e641a33dae4961196235bdb965b21b");

    let listed = HubCache::new(root.clone()).list().unwrap();
    let [model] = listed.as_slice() else { panic!("{listed:?}") };
    assert_eq!((model.name.as_str(), model.commit.as_str(), model.files), ("org/name", COMMIT, 3));
    assert_eq!((model.bytes, model.unfinished, &model.revisions), (3 * (1 << 20) + 4, 0, &vec!["main".to_owned()]));
    fs::remove_file(root.join("models--org--name/blobs").join(hub.digest("org/name", "model.safetensors"))).unwrap();
    assert_eq!(HubCache::new(root).list().unwrap()[0].broken, ["model.safetensors"]);
    assert_eq!(HubCache::new(folder.path().join("none")).list().unwrap(), []);
}
