use std::path::{Path, PathBuf};

/// A folder that goes with its test.
pub(crate) struct TempFolder(PathBuf);

impl TempFolder {
    pub(crate) fn new() -> Self {
        let mut octets = [0; 8];
        getrandom::fill(&mut octets).unwrap();
        let name = format!("softverbs-test-{:016x}", u64::from_ne_bytes(octets));
        let path = std::env::temp_dir().join(name);
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
