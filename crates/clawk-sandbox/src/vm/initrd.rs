//! The initrd of a machine's kernel: a few drivers, busybox, and the script that mounts the sandbox's files and executes this
//! program. Everything else comes over virtiofs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::drivers::load_order;

/// Drivers for the machine's port and files. Their dependencies are added.
const DRIVERS: [&str; 3] = ["virtio_pci", "virtio_console", "virtiofs"];

/// The first process. The machine's own `/proc` and `/dev` cover those of the sandbox; `/tmp` is the sandbox's.
const SCRIPT: &str = r#"#!/busybox sh
b=/busybox
n=/new
$b mkdir -p /dev /proc
$b mount -t devtmpfs dev /dev
for m in /drivers/*; do $b insmod "$m" || $b echo "can't load $m"; done
$b mount -t virtiofs -o nosuid,nodev files $n || { $b echo "no files: does this kernel have virtiofs?"; $b poweroff -f; }
$b mount -t proc -o nosuid,nodev,noexec proc $n/proc
$b mount -t tmpfs -o nosuid,mode=755,size=1m dev $n/dev
$b mknod -m 666 $n/dev/null c 1 3
$b mknod -m 666 $n/dev/zero c 1 5
$b mknod -m 666 $n/dev/full c 1 7
$b mknod -m 666 $n/dev/random c 1 8
$b mknod -m 666 $n/dev/urandom c 1 9
$b mknod -m 666 $n/dev/tty c 5 0
$b ln -s /proc/self/fd $n/dev/fd
$b ln -s /proc/self/fd/0 $n/dev/stdin
$b ln -s /proc/self/fd/1 $n/dev/stdout
$b ln -s /proc/self/fd/2 $n/dev/stderr
$b mkdir $n/dev/shm
$b mount -t tmpfs -o nosuid,nodev,mode=1777 shm $n/dev/shm
if [ -d $n/sys ]; then $b mount -t tmpfs -o nosuid,nodev,noexec,ro sys $n/sys; fi
$b hostname clawk
$b ifconfig lo 127.0.0.1 up
for p in /dev/vport*; do port=$p; done
[ -c "$port" ] || { $b echo "no port: does this kernel have virtio_console?"; $b poweroff -f; }
exec $b switch_root $n "$($b cat /program)" __vm agent 0<>"$port"
"#;

/// Builds the archive. `program` is this program's path in the view.
pub(super) fn build_archive(busybox: &Path, modules: &Path, program: &Path) -> io::Result<Vec<u8>> {
    let program = program
        .to_str()
        .ok_or_else(|| io::Error::other("clawk's own path is not UTF-8"))?;
    let mut archive = CpioArchive::default();
    for folder in ["drivers", "new"] {
        archive.add_entry(folder, 0o040_755, &[]);
    }
    archive.add_entry("busybox", 0o100_755, &fs::read(busybox)?);
    archive.add_entry("init", 0o100_755, SCRIPT.as_bytes());
    archive.add_entry("program", 0o100_644, program.as_bytes());
    for (at, file) in load_order(modules, &DRIVERS)?.iter().enumerate() {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        archive.add_entry(&format!("drivers/{at:02}-{name}"), 0o100_644, &fs::read(file)?);
    }
    Ok(archive.into_bytes())
}

/// Whether a program needs no libraries: the archive contains none.
pub(super) fn is_static(program: &Path) -> bool {
    let Ok(bytes) = fs::read(program) else {
        return false;
    };
    let interpreter = b"/ld-";
    let head = bytes.get(..4096.min(bytes.len())).unwrap_or_default();
    bytes.starts_with(b"\x7fELF") && !head.windows(interpreter.len()).any(|part| part == interpreter)
}

/// A `cpio` archive in the "newc" format of the kernel's documentation.
#[derive(Default)]
struct CpioArchive {
    bytes: Vec<u8>,
    entries: u32,
}

impl CpioArchive {
    fn add_entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let length = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, length, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad_block();
        self.bytes.extend_from_slice(content);
        self.pad_block();
    }

    fn pad_block(&mut self) {
        let whole = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(whole, 0);
    }

    fn into_bytes(mut self) -> Vec<u8> {
        self.add_entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

/// A kernel's version and modules folder: in `/lib/modules` for an installed kernel, in its own tree for an unpacked one.
pub(super) fn modules_of(kernel: &Path) -> Option<(String, PathBuf)> {
    let name = kernel.file_name()?.to_str()?;
    let version = name.strip_prefix("vmlinuz-")?.to_owned();
    let tree = kernel.parent()?.parent()?;
    ["lib/modules", "usr/lib/modules"]
        .iter()
        .map(|folder| tree.join(folder).join(&version))
        .find(|folder| folder.join("kernel").is_dir())
        .map(|folder| (version, folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_what_the_kernel_reads() {
        let mut archive = CpioArchive::default();
        archive.add_entry("a", 0o100_644, b"12345");
        let bytes = archive.into_bytes();
        assert!(bytes.starts_with(b"07070100000001000081A4"));
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(&bytes[110..112], b"a\0");
        assert_eq!(&bytes[112..117], b"12345");
        assert!(bytes.windows(10).any(|part| part == b"TRAILER!!!"));
    }

    #[test]
    fn modules_are_found_beside_an_unpacked_kernel() {
        let tree = tempfile::tempdir().unwrap();
        let modules = tree.path().join("lib/modules/6.1-x/kernel");
        fs::create_dir_all(&modules).unwrap();
        let kernel = tree.path().join("boot/vmlinuz-6.1-x");
        let (version, found) = modules_of(&kernel).unwrap();
        assert_eq!(version, "6.1-x");
        assert_eq!(found.join("kernel"), modules);
        assert!(modules_of(&tree.path().join("boot/bzImage")).is_none());
    }
}
