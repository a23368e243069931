//! Finds the modules that a machine's kernel must load, and their order, from the kernel's own lists. `modules.dep` is made when a
//! kernel is installed. If it is missing (an unpacked package), each module's own dependencies are read.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const SUFFIXES: [&str; 4] = ["ko", "ko.xz", "ko.zst", "ko.gz"];

/// The modules of one kernel.
struct KernelModuleCatalog {
    /// Each module's file.
    files: HashMap<String, PathBuf>,
    /// The dependencies in `modules.dep`. Absent: they are read from the modules themselves.
    needs: Option<HashMap<String, Vec<String>>>,
    /// Modules that are built into the kernel.
    built_in: HashSet<String>,
}

/// Files of the modules in `wanted`, each after its dependencies. Built-in modules need no file. `modules` is the kernel's folder
/// `lib/modules/VERSION`; a name is for example `virtio_blk`.
///
/// # Errors
/// A list can't be read, or the kernel has no such module.
pub fn load_order(modules: &Path, wanted: &[&str]) -> io::Result<Vec<PathBuf>> {
    let catalog = KernelModuleCatalog::read(modules)?;
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    for name in wanted {
        catalog.visit_module(name, &mut seen, &mut order)?;
    }
    Ok(order)
}

impl KernelModuleCatalog {
    fn read(modules: &Path) -> io::Result<Self> {
        let list = |name: &str| {
            let file = modules.join(name);
            fs::read_to_string(&file)
                .map_err(|error| io::Error::new(error.kind(), format!("`{}`: {error}", file.display())))
        };
        let built_in = list("modules.builtin")?.lines().filter_map(name_of).collect();
        let mut files = HashMap::new();
        let mut add = |path: &str| {
            let name = name_of(path)?;
            files.insert(name.clone(), modules.join(path));
            Some(name)
        };
        let needs = match list("modules.dep") {
            Ok(text) => {
                let mut needs = HashMap::new();
                for (path, others) in text.lines().filter_map(|line| line.split_once(':')) {
                    if let Some(name) = add(path) {
                        needs.insert(name, others.split_whitespace().filter_map(name_of).collect());
                    }
                }
                Some(needs)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                list("modules.order")?.lines().for_each(|path| drop(add(path)));
                None
            }
            Err(error) => return Err(error),
        };
        Ok(Self {
            files,
            needs,
            built_in,
        })
    }

    /// Visits depth first, so that dependencies come before the module. The kernel's lists have no cycles; `seen` would end one.
    fn visit_module(
        &self,
        name: &str,
        seen: &mut BTreeSet<String>,
        order: &mut Vec<PathBuf>,
    ) -> io::Result<()> {
        if self.built_in.contains(name) || !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let missing = || {
            io::Error::other(format!(
                "this kernel has no `{name}`, neither built in nor as a module"
            ))
        };
        let listed = self.files.get(name).ok_or_else(missing)?;
        let file = SUFFIXES
            .iter()
            .map(|suffix| listed.with_file_name(format!("{}.{suffix}", module_stem(listed))))
            .find(|file| file.is_file())
            .ok_or_else(missing)?;
        let needs = match &self.needs {
            Some(needs) => needs.get(name).cloned().unwrap_or_default(),
            None => read_module_info(&file)?,
        };
        for other in needs {
            self.visit_module(&other, seen, order)?;
        }
        order.push(file);
        Ok(())
    }
}

/// The dependencies that are written in the module's file.
fn read_module_info(file: &Path) -> io::Result<Vec<String>> {
    const FIELD: &[u8] = b"\0depends=";
    let unread = || {
        io::Error::other(format!(
            "`{}` does not say what it depends on; run `depmod` for this kernel",
            file.display()
        ))
    };
    let bytes = fs::read(file)?;
    let at = bytes
        .windows(FIELD.len())
        .position(|part| part == FIELD)
        .ok_or_else(unread)?;
    let rest = bytes.get(at + FIELD.len()..).unwrap_or_default();
    let value = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = std::str::from_utf8(value).map_err(|_invalid| unread())?;
    Ok(text.split(',').filter_map(name_of).collect())
}

fn module_stem(path: &Path) -> &str {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    name.split('.').next().unwrap_or_default()
}

/// A module's name: the file name without suffixes, with `_` for every `-`, as in the kernel.
fn name_of(path: &str) -> Option<String> {
    let name = module_stem(Path::new(path.trim())).replace('-', "_");
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A modules folder whose modules contain their dependencies.
    fn tree(modules: &[(&str, &str)], built_in: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let mut order = String::new();
        for (path, needs) in modules {
            let file = folder.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, format!("\x7fELF…\0license=GPL\0depends={needs}\0name=x\0")).unwrap();
            order.push_str(path);
            order.push('\n');
        }
        fs::write(folder.path().join("modules.order"), order).unwrap();
        fs::write(folder.path().join("modules.builtin"), built_in).unwrap();
        folder
    }

    fn names(modules: &Path, wanted: &[&str]) -> Vec<String> {
        let order = load_order(modules, wanted).unwrap();
        order.iter().map(|file| module_stem(file).to_owned()).collect()
    }

    /// Debian's cloud kernels: 6.1.0-48 and before, then 6.1.0-56.
    #[test]
    fn the_order_is_the_kernels() {
        let older = [
            ("kernel/a/virtio.ko", ""),
            ("kernel/a/virtio_ring.ko", "virtio"),
            ("kernel/b/virtio-blk.ko", "virtio,virtio_ring"),
        ];
        let newer = [
            ("kernel/a/virtio.ko", "virtio_ring"),
            ("kernel/a/virtio_ring.ko", ""),
            ("kernel/b/virtio-blk.ko", "virtio,virtio_ring"),
        ];
        let (older, newer) = (tree(&older, ""), tree(&newer, ""));
        assert_eq!(
            names(older.path(), &["virtio_blk"]),
            ["virtio", "virtio_ring", "virtio-blk"]
        );
        assert_eq!(
            names(newer.path(), &["virtio_blk"]),
            ["virtio_ring", "virtio", "virtio-blk"]
        );
    }

    #[test]
    fn modules_dep_counts_where_it_is() {
        let folder = tree(
            &[
                ("kernel/fuse.ko.xz", "no"),
                ("kernel/virtiofs.ko.xz", "no"),
                ("updates/ring.ko.xz", "no"),
            ],
            "kernel/virtio.ko\n",
        );
        let list = "kernel/fuse.ko.xz:\nkernel/virtiofs.ko.xz: kernel/fuse.ko.xz updates/ring.ko.xz kernel/virtio.ko\nupdates/ring.ko.xz:\n";
        fs::write(folder.path().join("modules.dep"), list).unwrap();
        assert_eq!(
            names(folder.path(), &["virtiofs", "fuse", "virtio"]),
            ["fuse", "ring", "virtiofs"]
        );
    }

    #[test]
    fn what_the_kernel_has_not_is_named() {
        let folder = tree(&[("kernel/virtiofs.ko", "fuse")], "kernel/virtio.ko\n");
        let error = load_order(folder.path(), &["virtio", "virtiofs"]).unwrap_err();
        assert!(error.to_string().contains("no `fuse`"), "{error}");
        fs::write(folder.path().join("kernel/virtiofs.ko"), "compressed").unwrap();
        let error = load_order(folder.path(), &["virtiofs"]).unwrap_err();
        assert!(error.to_string().contains("run `depmod`"), "{error}");
    }
}
