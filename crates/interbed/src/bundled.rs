//! The model that ships with Interbed, in a folder or unpacked from the program itself.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::process::getuid;

use crate::failure::Advised;
use crate::user_folders;

/// The path of the model's folder, from the root of a checkout or from `share/interbed`.
const PLACE: &str = "models/storyteller";

/// The name that clients see, which is the name of the folder.
const NAME: &str = "storyteller";

macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../../models/storyteller/", $name)).as_slice())
    };
}

/// The model's files, which are compiled into the program.
const FILES: [(&str, &[u8]); 6] = [
    file!("config.json"),
    file!("generation_config.json"),
    file!("special_tokens_map.json"),
    file!("tokenizer_config.json"),
    file!("tokenizer.json"),
    file!("model.safetensors"),
];

/// Returns the folder of the bundled model. Looks for `models/storyteller` and `share/interbed/models/storyteller` in
/// the working directory, the program's folder, and the parents of both. If the model is not found there, unpacks the
/// files that are compiled into the program.
///
/// # Errors
/// Fails if no folder has the model, and the model cannot be unpacked.
pub fn bundled_model() -> Result<PathBuf> {
    let starts = [std::env::current_dir().ok(), std::env::current_exe().ok()];
    let found = starts
        .iter()
        .flatten()
        .flat_map(|start| start.ancestors())
        .flat_map(|folder| [folder.join(PLACE), folder.join("share/interbed").join(PLACE)])
        .find(|path| path.join("config.json").exists());
    if let Some(path) = found {
        return Ok(path);
    }
    let mut hash = blake3::Hasher::new();
    for (_, bytes) in FILES {
        hash.update(bytes);
    }
    // Each version of the model is unpacked to a folder of its own.
    let version = &hash.finalize().to_hex()[..16];
    let root = user_folders::cache().unwrap_or_else(own_temporary_folder);
    let folder = root.join("models").join(version).join(NAME);
    unpack(&root, &folder).map_err(|error| {
        Advised::system(
            format!("the model that ships with Interbed cannot be unpacked to {}", folder.display()),
            "set XDG_CACHE_HOME to a folder of yours that can be written, or give a MODEL",
            error,
        )
    })?;
    Ok(folder)
}

/// Returns a temporary folder of this user, for users without a home.
fn own_temporary_folder() -> PathBuf {
    std::env::temp_dir().join(format!("interbed-{}", getuid().as_raw()))
}

/// Writes the files that are missing or differ from those in the program. Each file is written as a whole.
fn unpack(root: &Path, folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // In a folder that all users share, another user may have created this folder.
    let found = fs::symlink_metadata(root)?;
    if !found.is_dir() || found.uid() != getuid().as_raw() || found.mode() & 0o022 != 0 {
        let why = format!("{} is not this user's alone", root.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    for (name, bytes) in FILES {
        let path = folder.join(name);
        if fs::read(&path).is_ok_and(|found| found == bytes) {
            continue;
        }
        let new = folder.join(format!(".{name}.{}.new", std::process::id()));
        fs::write(&new, bytes)?;
        fs::rename(&new, &path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_unpacked_is_whole_and_nobody_elses() {
        let home = tempfile::tempdir().expect("a folder");
        let root = home.path().join("cache");
        let folder = root.join("models/1/storyteller");
        let read = |name: &str| fs::read(folder.join(name)).expect(name);
        unpack(&root, &folder).expect("it is unpacked");
        assert!(FILES.iter().all(|(name, bytes)| read(name) == *bytes));
        // Damaged files are written again, and the others stay unchanged.
        let written = |name: &str| fs::metadata(folder.join(name)).expect(name).modified().expect("a time");
        let before = written("model.safetensors");
        fs::write(folder.join("config.json"), b"{").expect("it can be written");
        unpack(&root, &folder).expect("it is unpacked");
        assert_eq!((read("config.json"), written("model.safetensors")), (FILES[0].1.to_vec(), before));
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), FILES.len(), "nothing is left behind");
        fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).expect("ours");
        assert!(unpack(&root, &folder).expect_err("others can write there").to_string().contains("this user's alone"));
    }
}
