//! Raw block devices: their size, and signatures of what they contain.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};

/// Returns the size in bytes of an open block device. The metadata of a block device does not contain its size.
///
/// # Errors
/// Fails with the system's error if the size is unknown, for instance for a drive without a medium.
pub fn block_device_bytes(file: &File) -> io::Result<u64> {
    // All reads and writes here state their offset, so they do not depend on the position that this changes.
    let mut file = file;
    file.seek(SeekFrom::End(0))
}

/// Describes the content of a device, such as a file system, by the signature in its first bytes. Returns `None` if
/// `begin` contains no known signature. `begin` must hold at least the first 65,608 bytes of the device, so that every
/// known signature can be found.
pub fn signature(begin: &[u8]) -> Option<&'static str> {
    // Each entry is an offset, bytes, and a name. File systems come before partition tables, as a device may have the
    // signatures of both.
    const KNOWN: [(usize, &[u8], &str); 19] = [
        (0, b"XFSB", "an XFS file system"),
        (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
        (0, b"hsqs", "a squashfs file system"),
        (0, b"GGUF", "a GGUF model"),
        (3, b"NTFS    ", "an NTFS file system"),
        (3, b"EXFAT   ", "an exFAT file system"),
        (54, b"FAT", "a FAT file system"),
        (82, b"FAT32", "a FAT file system"),
        (512, b"EFI PART", "a partition table (GPT)"),
        (4096, b"EFI PART", "a partition table (GPT)"),
        (24, b"LVM2 001", "an LVM volume"),
        (536, b"LVM2 001", "an LVM volume"),
        (1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
        (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
        (4086, b"SWAPSPACE2", "swap space"),
        (4096, b"\xfc\x4e\x2b\xa9", "a member of a RAID (md)"),
        (32_769, b"CD001", "an ISO 9660 image"),
        (65_600, b"_BHRfS_M", "a btrfs file system"),
        (510, b"\x55\xaa", "a partition table or a boot sector"),
    ];
    let holds = |at: usize, bytes: &[u8]| begin.get(at..at + bytes.len()) == Some(bytes);
    KNOWN.iter().find(|(at, bytes, _)| holds(*at, bytes)).map(|(_, _, what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_there_is_named() {
        let with = |at: usize, bytes: &[u8]| {
            let mut begin = vec![0; 1 << 17];
            begin[at..at + bytes.len()].copy_from_slice(bytes);
            begin
        };
        assert_eq!(signature(&with(1080, b"\x53\xef")), Some("an ext2, ext3 or ext4 file system"));
        assert_eq!(signature(&with(0x10040, b"_BHRfS_M")), Some("a btrfs file system"));
        assert_eq!(signature(&with(510, b"\x55\xaa")), Some("a partition table or a boot sector"));
        assert_eq!(signature(&with(7, b"XFSB")), None);
        assert_eq!(signature(b"XFS"), None);
    }
}
