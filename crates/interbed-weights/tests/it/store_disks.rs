//! Packed stores on small disks and raw devices, as root can make them. Elsewhere these tests say why they are skipped.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use interbed_io::{IoError, RandomAccessFile, TargetError, WriteTarget};
use interbed_weights::{Catalog, PackPhase, StoreProblem, WeightError, inspect_target};

use crate::store::{assert_same, damage, model, names_in, pack, pack_until, store_problem};

/// Runs a command of the system; `None` where it fails, with the reason on stderr.
fn system(program: &str, args: &[&str]) -> Option<String> {
    match Command::new(program).args(args).output() {
        Ok(output) if output.status.success() => Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        Ok(output) => {
            eprintln!("skipped: {program} {args:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
            None
        }
        Err(error) => {
            eprintln!("skipped: {program}: {error}");
            None
        }
    }
}

/// A mount, undone at the end.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        system("umount", &[self.0.to_str().unwrap()]);
    }
}

/// A loop device over a file, undone at the end.
struct LoopDevice(String);

impl LoopDevice {
    fn of(file: &Path, bytes: u64) -> Option<Self> {
        File::create(file).unwrap().set_len(bytes).unwrap();
        system("losetup", &["--find", "--show", file.to_str().unwrap()]).map(Self)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        system("losetup", &["--detach", &self.0]);
    }
}

#[test]
fn a_full_disk_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let source = model(dir.path());
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    // Only root may mount.
    if system("mount", &["-t", "tmpfs", "-o", "size=200k", "tmpfs", small.to_str().unwrap()]).is_none() {
        return;
    }
    let mounted = Mounted(small.clone());
    let outcome = pack_until(&source, &small.join("out.interbed"), |_, _| false);
    match outcome {
        Err(WeightError::Target(TargetError::NoRoom { wanted, available, .. })) => {
            assert!(wanted > 280_000 && available <= 200 << 10, "{wanted} {available}");
        }
        other => panic!("expected a full disk, got {other:?}"),
    }
    assert_eq!(names_in(&small), [""; 0]);
    drop(mounted);
}

#[test]
fn a_disk_that_fills_up_meanwhile_keeps_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let source = model(dir.path());
    let once = dir.path().join("once.interbed");
    pack(&source, &once);
    // A file system that cannot reserve room, so that it is missed only when it is written to.
    let Some(device) = LoopDevice::of(&dir.path().join("disk"), 2 << 20) else { return };
    if system("mkfs.ext2", &["-q", "-F", "-m", "0", &device.0]).is_none() {
        return;
    }
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    if system("mount", &[&device.0, small.to_str().unwrap()]).is_none() {
        return;
    }
    let _mounted = Mounted(small.clone());
    let (out, filler) = (small.join("out.interbed"), small.join("filler"));
    let outcome = pack_until(&source, &out, |_, _| {
        // Writes until there is no room; that is what it is for.
        let _ = File::options()
            .create(true)
            .append(true)
            .open(&filler)
            .map(|mut file| while file.write_all(&[1; 1024]).is_ok() {});
        false
    });
    match outcome {
        Err(WeightError::Io(error @ IoError::Write { .. })) => assert_eq!(error.errno(), Some(28), "{error}"),
        other => panic!("expected a full disk, got {other:?}"),
    }
    assert!(!out.exists(), "nothing has the final name");
    fs::remove_file(&filler).unwrap();
    assert!(pack(&source, &out).bytes_resumed > 0);
    assert_eq!(fs::read(&out).unwrap(), fs::read(&once).unwrap());
}

#[test]
fn a_raw_device_holds_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let source = model(dir.path());
    // Only root may make one.
    let Some(device) = LoopDevice::of(&dir.path().join("disk"), 8 << 20) else { return };
    let path = Path::new(&device.0);
    inspect_target(&WriteTarget::open(path).unwrap()).unwrap();
    let stopped = pack_until(&source, path, |phase, _| phase == PackPhase::Verifying);
    assert_eq!(store_problem(stopped), StoreProblem::Stopped);
    assert_eq!(store_problem(Catalog::open(path)), StoreProblem::Unfinished, "the header comes last");
    inspect_target(&WriteTarget::open(path).unwrap()).unwrap();
    assert!(pack(&source, path).bytes_resumed > 0);
    let packed = Catalog::open(path).unwrap();
    assert_same(&packed, &source);
    assert_eq!(damage(path), []);
    // A store that is whole is overwritten by force only.
    let problem = store_problem(inspect_target(&WriteTarget::open(path).unwrap()));
    assert!(matches!(&problem, StoreProblem::Occupied { found } if found.contains("store")), "{problem}");
    drop(packed);

    // Data of others is not overwritten, mounted or not.
    if system("mkfs.ext4", &["-q", "-F", &device.0]).is_some() {
        let problem = store_problem(inspect_target(&WriteTarget::open(path).unwrap()));
        assert!(matches!(&problem, StoreProblem::Occupied { found } if found.contains("ext4")), "{problem}");
        let mount = dir.path().join("mount");
        fs::create_dir(&mount).unwrap();
        if system("mount", &[&device.0, mount.to_str().unwrap()]).is_some() {
            let _mounted = Mounted(mount);
            assert!(matches!(WriteTarget::open(path), Err(TargetError::InUse { .. })));
        }
    }
}

#[test]
fn a_device_that_is_too_small_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = model(dir.path());
    let Some(device) = LoopDevice::of(&dir.path().join("disk"), 64 << 10) else { return };
    let path = Path::new(&device.0);
    match pack_until(&source, path, |_, _| false) {
        Err(WeightError::Target(TargetError::NoRoom { available, .. })) => assert_eq!(available, 64 << 10),
        other => panic!("expected too little room, got {other:?}"),
    }
    let mut bytes = vec![1; 64 << 10];
    Catalog::open(path).unwrap_err();
    let reader = interbed_io::ExactFile::open(path).unwrap();
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0), "nothing was written");
}
