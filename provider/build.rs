//! Makes a stand-in for libibverbs to link against, so that the build needs none installed.
//!
//! The plug-in must name `libibverbs.so.1` as a library it needs, and the private symbols with the
//! version of the release it was built for: then a program that loaded libibverbs privately finds
//! them, and another release refuses the plug-in by name instead of crashing in it. The stand-in
//! has just these symbols and is used by the linker alone.
//!
//! The package's name says which release that is.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use verbs_sys::RELEASES;

/// The symbols that the plug-in takes from the library, beside the function that carries the private ABI number
/// in its name.
const SYMBOLS: &[&str] =
    &["_verbs_init_and_alloc_context", "verbs_set_ops", "verbs_uninit_context", "__verbs_log"];

fn main() {
    println!("cargo:rerun-if-changed=../build.rs");
    println!("cargo:rerun-if-env-changed=CC");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let (source, versions, library) =
        (out.join("verbs.c"), out.join("verbs.map"), out.join("libibverbs.so.1"));
    let package = env::var("CARGO_PKG_NAME").expect("cargo sets CARGO_PKG_NAME");
    let release = RELEASES.iter().find(|it| package == format!("balboa-provider-{}", it.number));
    let release = release.unwrap_or_else(|| panic!("verbs-sys has no release for {package}"));
    let (number, private_abi) = (release.number, release.private_abi);
    fs::write(out.join("abi.rs"), format!("use verbs_sys::v{number} as abi;\n"))
        .expect("name the release's types");
    println!("cargo:rustc-env=IBVERBS_PABI_VERSION={private_abi}");
    let register = format!("verbs_register_driver_{private_abi}");
    let mut functions = String::new();
    let mut map = format!("IBVERBS_PRIVATE_{private_abi} {{ global:\n");
    for symbol in SYMBOLS.iter().copied().chain([register.as_str()]) {
        functions += &format!("void *{symbol}(void) {{ return 0; }}\n");
        map += &format!("  {symbol};\n");
    }
    map += "  local: *;\n};\n";
    fs::write(&source, functions).expect("write the stand-in's source");
    fs::write(&versions, map).expect("write the stand-in's symbol versions");
    let compiler =
        env::var_os("CC").or_else(|| env::var_os("RUSTC_LINKER")).unwrap_or_else(|| "cc".into());
    let status = Command::new(&compiler)
        .args(["-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libibverbs.so.1", "-o"])
        .arg(&library)
        .arg(&source)
        .arg(format!("-Wl,--version-script={}", versions.display()))
        .status()
        .unwrap_or_else(|error| panic!("run the C compiler {compiler:?}: {error}; set CC"));
    assert!(status.success(), "the C compiler {compiler:?} could not link the stand-in: {status}");
    let link = out.join("libibverbs.so");
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(&library, &link).expect("name the stand-in for the linker");
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=dylib=ibverbs");
}
