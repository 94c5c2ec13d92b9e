//! Where things are kept between runs, outside the tree.

use std::path::PathBuf;

/// `$XDG_CACHE_HOME/balboa`, else `~/.cache/balboa`; `None` where neither is known.
pub fn directory() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(cache.join("balboa"))
}
