//! Certificates for servers of the lab.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Makes a certificate for these names, which is its own authority, and its key: PEM files in `directory`.
pub fn self_signed(directory: &Path, names: &[&str]) -> Result<(PathBuf, PathBuf)> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let made = rcgen::generate_simple_self_signed(names).context("cannot make a certificate")?;
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| directory.join(name));
    for (file, text) in [(&certificate, made.cert.pem()), (&key, made.signing_key.serialize_pem())] {
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok((certificate, key))
}
