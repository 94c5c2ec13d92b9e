//! Images of cards: made, looked at, signed and checked by `balboa image`, and all that is wrong with
//! one refused.

use std::fs;
use std::os::unix::fs::chown;

use anyhow::{Context as _, Result, ensure};
use harness::process::Finished;
use harness::runner::Case;
use harness::setting::Setting;
use serde_json::Value;

/// A pair of keys of the tests, made by Debian's `minisign -G -W`, and a public key of another pair.
const SECRET: &str = "untrusted comment: minisign encrypted secret key
RWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAS7HxBi8WBSNcMVy2tj6ZSd6GI5REe3Q2Sn811AvCsP460YZedpYT8DEWuJ0YF7wxbpgC+5NeB1OPDyB9HDOM33tEQ4VqfUH/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=
";
const PUBLIC: &str = "untrusted comment: minisign public key 2305162F06F1B14B
RWRLsfEGLxYFIzEWuJ0YF7wxbpgC+5NeB1OPDyB9HDOM33tEQ4VqfUH/
";
pub(super) const OTHER: &str = "untrusted comment: minisign public key of somebody else
RWRLsfEGLxYFIzEWuJ0YF7wxbpgC+5NeB1OPDyB9HDOM33tEQ4VqfUHV
";

/// The family.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("image/made, signed and verified", &[], signed),
        Case::new("image/a manifest and its files", &[], manifest),
    ]
}

/// Runs `balboa image`.
fn image(setting: &Setting, words: &str) -> Result<Finished> {
    setting.built("balboa").words("image").words(words).run()
}

/// Writes a file that the case's user owns.
pub(super) fn put(setting: &Setting, name: &str, bytes: impl AsRef<[u8]>) -> Result<()> {
    let path = setting.directory().join(name);
    fs::write(&path, bytes)?;
    Ok(chown(path, Some(setting.uid()), None)?)
}

/// Puts a secret key, and its public key in a folder.
pub(super) fn put_keys(setting: &Setting) -> Result<()> {
    fs::create_dir(setting.directory().join("keys"))?;
    put(setting, "key", SECRET)?;
    put(setting, "keys/site.pub", PUBLIC)
}

fn signed(setting: &Setting) -> Result<()> {
    let at = |name: &str| setting.directory().join(name);
    let refused = |words: &str, why: &str| {
        image(setting, words)?.code(1)?.complains(why).with_context(|| words.to_owned())
    };
    for (name, key) in [("key", SECRET), ("key.pub", PUBLIC), ("other.pub", OTHER)] {
        put(setting, name, key)?;
    }
    image(setting, "make --soft vqe,vqe -o a.soft --sign key")?.success()?;
    image(setting, "make --soft vqe,vqe -o b.soft")?.success()?;
    let made = fs::read(at("a.soft"))?;
    ensure!(made == fs::read(at("b.soft"))?, "the same logic makes other bytes");
    let shown = image(setting, "inspect a.soft --json")?.success()?;
    let facts: Value = serde_json::from_str(&shown.stdout)?;
    ensure!(facts["kind"] == "soft" && facts["bytes"] == made.len(), "{facts}");
    ensure!(facts["logic"] == serde_json::json!(["vqe", "vqe"]), "{facts}");
    image(setting, "inspect a.soft")?.success()?.says("logic        vqe, vqe")?;
    image(setting, "lint a.soft")?.success()?.says("kind         soft")?;

    let shown = image(setting, "verify a.soft --key other.pub --key key.pub --json")?.success()?;
    let facts: Value = serde_json::from_str(&shown.stdout)?;
    ensure!(facts["signed_by"] == "key.pub", "{facts}");
    ensure!(facts["comment"] == format!("sha256:{}", text(&facts["sha256"])), "{facts}");
    refused("verify b.soft --key key.pub", "b.soft.minisig: No such file")?;
    image(setting, "sign b.soft --key key")?.success()?;
    image(setting, "verify b.soft --key key.pub")?.success()?.says("signed_by    key.pub")?;
    refused("verify a.soft --key other.pub", "by none of the keys, or of other bytes")?;
    refused("verify a.soft --key key", "it is no public key")?;
    refused("sign a.soft --key key.pub", "it is no secret key")?;
    refused("sign key --key key", "it is no .bit, no .pdi")?;
    refused("make --soft vqe -o c.soft --sign key.pub", "it is no secret key")?;
    ensure!(!at("c.soft").exists(), "a file was made that could not be signed");

    // Another image with this one's signature, and a signature that is none.
    image(setting, "make --soft vqe -o c.soft")?.success()?;
    fs::copy(at("a.soft.minisig"), at("c.soft.minisig"))?;
    refused("verify c.soft --key key.pub", "by none of the keys, or of other bytes")?;
    let signature = fs::read_to_string(at("a.soft.minisig"))?;
    let cut: Vec<&str> = signature.lines().take(3).chain(["AAAA"]).collect();
    put(setting, "c.soft.minisig", cut.join("\n"))?;
    refused("verify c.soft --key key.pub", "it is no signature of minisign's")?;

    put(setting, "a.soft", &made[..made.len() - 1])?;
    refused("verify a.soft --key key.pub", "it is truncated: it says 81 bytes and has 80")?;
    let mut spoilt = made;
    spoilt[60] ^= 1;
    put(setting, "a.soft", &spoilt)?;
    refused("inspect a.soft", "its SHA-256 is ")?;
    Ok(())
}

fn manifest(setting: &Setting) -> Result<()> {
    let with = |board: &str, part: &str, kind: &str| {
        format!(
            "format = 1\nname = \"x\"\nshell-map = \"since-2026\"\nboard = \"{board}\"\npart = \"{part}\"\n\
             [[files]]\nname = \"shell.bin\"\nkind = \"{kind}\"\n"
        )
    };
    let at = |name: &str| setting.directory().join(name);
    put(setting, "u55c.toml", with("u55c", "xcu55c-fsvh2892-2L-e", "shell"))?;
    put(setting, "u250.toml", with("u250", "xcu250-figd2104-2L-e", "shell"))?;
    put(setting, "full.toml", with("u55c", "xcu55c-fsvh2892-2L-e", "full"))?;
    let refused = |words: &str, why: &str| {
        image(setting, words)?.code(1)?.complains(why).with_context(|| words.to_owned())
    };
    image(setting, "lint u55c.toml")?.success()?.says("shell.bin: not here")?;
    for (name, key) in [("key", SECRET), ("key.pub", PUBLIC)] {
        put(setting, name, key)?;
    }
    refused("verify u55c.toml --key key.pub", "u55c.toml.minisig: No such file")?;
    image(setting, "sign u55c.toml --key key")?.success()?;
    image(setting, "verify u55c.toml --key key.pub")?.success()?.says("signed_by    key.pub")?;
    fs::copy(at("u55c.toml.minisig"), at("u250.toml.minisig"))?;
    refused("verify u250.toml --key key.pub", "by none of the keys, or of other bytes")?;
    // Sync, IDCODE of the U55C, DESYNC: the smallest partial bitstream.
    let words: [u32; 5] = [0xaa99_5566, 0x3001_8001, 0x14b7_d093, 0x3000_8001, 13];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    put(setting, "shell.bin", &bytes)?;
    image(setting, "lint u55c.toml")?.success()?.says("shell.bin: a partial bitstream")?;
    let shown = image(setting, "inspect shell.bin")?.success()?;
    shown.says("parts        xcu55c, xcu280")?.says("idcode       0x14b7d093")?;
    let part = "shell.bin: it is for xcu55c or xcu280, and its manifest is xcu250's";
    refused("lint u250.toml", part)?;
    refused("lint full.toml", "it is a partial bitstream, which does not fit its kind")?;
    put(setting, "shell.bin", &bytes[..16])?;
    refused("lint u55c.toml", "shell.bin: it is no .bit")?;
    refused("inspect shell.bin", "it is truncated")?;
    let swapped: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    put(setting, "shell.bin", swapped)?;
    refused("lint u55c.toml", "the bytes of each word of 32 bits are swapped")?;
    // What balboad reads is the same file.
    put(setting, "bad.toml", with("u55c", "xcu250-figd2104-2L-e", "shell"))?;
    refused("sign bad.toml --key key", "is the u250's; write board = \"u250\"")?;
    refused("lint bad.toml", "is the u250's; write board = \"u250\"")?;
    let daemon = setting.built("balboad").words("--soft 1 --manifest bad.toml --state-dir d");
    daemon
        .run()?
        .code(2)?
        .complains("manifest bad.toml: part = \"xcu250-figd2104-2L-e\" is the")?;
    Ok(())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
