//! `balboa image`: files that cards are made of.

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bitstreams::Entry;
use bitstreams::digest::Sha256;
use bitstreams::image::Image;
use bitstreams::model;
use bitstreams::signature::{self, PublicKey, Signature};
use bitstreams::soft::{Logic, SoftImage};
use nix::unistd::geteuid;
use serde_json::{Value, json};
use terminal::file::is_private_file;
use terminal::say;

use crate::args;

/// Bytes of the largest image that is read: the largest known, of whole devices, have 120 MB.
pub const MAX_IMAGE: u64 = 1 << 30;
/// Bytes of the largest manifest, key or signature.
const MAX_TEXT: u64 = 64 << 10;
/// Where the public keys lie that are trusted.
const KEYS: &str = "/etc/balboa/keys";

/// Executes the command.
///
/// # Errors
/// When it cannot be done, or an image, manifest or signature is not right.
pub fn image(action: &args::Image) -> Result<()> {
    match action {
        args::Image::Make { soft, vfpga, bitstream, output, bytes, sign } => {
            let image = filled(of(soft, *vfpga)?, *bytes)?;
            let bytes = match bitstream {
                true => model::make(&image).map_err(anyhow::Error::msg)?,
                false => image.to_bytes(),
            };
            make(&bytes, output, sign.as_deref())
        }
        args::Image::Inspect { file, json } => inspect(file, *json),
        args::Image::Lint { file, json } => lint(file, *json),
        args::Image::Sign { file, key } => sign(file, key),
        args::Image::Verify { file, key, json } => verify(file, key, *json),
    }
}

/// The image with this logic, of a whole card or of one vFPGA alone.
fn of(logic: &[Logic], vfpga: Option<u8>) -> Result<SoftImage> {
    let image = match (vfpga, logic) {
        (None, logic) => SoftImage::new(logic.to_vec()),
        (Some(vfpga), [logic]) => SoftImage::of_one(vfpga, *logic),
        (Some(_), _) => Err("--vfpga: name the logic of that vFPGA alone, as --soft vqe".into()),
    };
    image.map_err(anyhow::Error::msg)
}

fn filled(image: SoftImage, bytes: Option<u32>) -> Result<SoftImage> {
    let Some(bytes) = bytes else { return Ok(image) };
    image.filled_to(bytes).map_err(anyhow::Error::msg)
}

fn make(bytes: &[u8], output: &Path, key: Option<&Path>) -> Result<()> {
    // A key that does not serve leaves nothing behind.
    let signature = key.map(|key| signed(bytes, key)).transpose()?;
    write(output, bytes)?;
    signature.map_or(Ok(()), |signature| write(&signature_of(output), signature.as_bytes()))
}

fn inspect(file: &Path, as_json: bool) -> Result<()> {
    let (bytes, image) = read_image(file)?;
    show(&facts(&bytes, &image), as_json)
}

/// Whether a file is a manifest, by its name.
pub fn is_manifest(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "toml")
}

fn lint(file: &Path, as_json: bool) -> Result<()> {
    if !is_manifest(file) {
        let (bytes, image) = read_image(file)?;
        return show(&facts(&bytes, &image), as_json);
    }
    let entry = Entry::parse(&read_text(file)?).map_err(|why| about(file, &why))?;
    let mut files = serde_json::Map::new();
    for of in &entry.details.files {
        let path = file.with_file_name(&of.name);
        if !path.try_exists().with_context(|| path.display().to_string())? {
            files.insert(of.name.clone(), json!("not here"));
            continue;
        }
        let bytes = read(&path, MAX_IMAGE)?;
        let checked = entry.details.check_file(of, entry.manifest.regions, &bytes);
        let image = checked.map_err(|why| about(&path, &why))?;
        if let Some(signature) = &of.signature {
            read_signature(&file.with_file_name(signature))?;
        }
        files.insert(of.name.clone(), json!(image.describe()));
    }
    let (name, board) = (&entry.manifest.name, &entry.details.board);
    let verified = entry.details.verified;
    show(&json!({ "name": name, "board": board, "verified": verified, "files": files }), as_json)
}

fn sign(file: &Path, key: &Path) -> Result<()> {
    let (bytes, _) = read_signable(file)?;
    write(&signature_of(file), signed(&bytes, key)?.as_bytes())
}

/// Reads an image or a manifest, and its facts: other files are not signed here.
fn read_signable(file: &Path) -> Result<(Vec<u8>, Value)> {
    if !is_manifest(file) {
        let (bytes, image) = read_image(file)?;
        let facts = facts(&bytes, &image);
        return Ok((bytes, facts));
    }
    let text = read_text(file)?;
    let entry = Entry::parse(&text).map_err(|why| about(file, &why))?;
    let (name, verified) = (&entry.manifest.name, entry.details.verified);
    let facts = json!({ "kind": "manifest", "name": name, "verified": verified });
    Ok((text.into_bytes(), facts))
}

fn verify(file: &Path, keys: &[PathBuf], as_json: bool) -> Result<()> {
    let (bytes, mut facts) = read_signable(file)?;
    let keys = if keys.is_empty() { trusted(Path::new(KEYS))? } else { keys.to_vec() };
    let (by, signature) = signed_by(file, &signature_of(file), &bytes, keys)?;
    facts["signed_by"] = json!(by.to_string_lossy());
    facts["comment"] = json!(signature.comment());
    show(&facts, as_json)
}

/// The name of the key, of those in a directory, by which a signature is that of a file's bytes.
///
/// # Errors
/// When it is by no trusted key, or there is none.
pub fn signer(file: &Path, signature: &Path, bytes: &[u8], keys: Option<&Path>) -> Result<String> {
    let keys = trusted(keys.unwrap_or(Path::new(KEYS)))?;
    Ok(signed_by(file, signature, bytes, keys)?.0.to_string_lossy().into_owned())
}

fn signed_by(
    file: &Path,
    signature: &Path,
    bytes: &[u8],
    keys: Vec<PathBuf>,
) -> Result<(PathBuf, Signature)> {
    let signature = read_signature(signature)?;
    let key = |path: PathBuf| {
        let key = PublicKey::parse(&read_text(&path)?).map_err(|why| about(&path, &why))?;
        Ok((path, key))
    };
    let keys: Vec<(PathBuf, PublicKey)> = keys.into_iter().map(key).collect::<Result<_>>()?;
    let by = signature.check(bytes, &keys).ok_or_else(|| {
        about(file, "its signature is by none of the keys, or of other bytes; have it anew")
    })?;
    Ok((by.clone(), signature))
}

/// The keys in a directory, by their names; none where others could have put one there.
fn trusted(directory: &Path) -> Result<Vec<PathBuf>> {
    let directory_name = directory.display();
    let none = || format!("{directory_name} has no key (NAME.pub); put one there, or name another");
    let entries = fs::read_dir(directory).with_context(none)?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>();
    let mut paths = paths.with_context(|| directory_name.to_string())?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "pub"));
    paths.sort();
    ensure!(!paths.is_empty(), "{}", none());
    let trusted = [0, geteuid().as_raw()];
    for path in &paths {
        ensure!(
            is_private_file(path, trusted),
            "{}: others than root and you can change it, or put another key in its place; make it and the directories above it yours or root's, and take writing from others (chmod go-w)",
            path.display()
        );
    }
    Ok(paths)
}

fn signed(bytes: &[u8], key: &Path) -> Result<String> {
    signature::sign(bytes, &read_text(key)?).map_err(|why| about(key, &why))
}

/// The name of an image's signature.
pub fn signature_of(file: &Path) -> PathBuf {
    let mut name: OsString = file.as_os_str().to_owned();
    name.push(".minisig");
    name.into()
}

/// The facts about an image.
pub fn facts(bytes: &[u8], image: &Image) -> Value {
    let parts: Vec<_> = image.parts().iter().map(|part| part.name).collect();
    let mut facts = json!({
        "kind": image.kind(),
        "what": image.describe(),
        "bytes": bytes.len(),
        "sha256": Sha256::of(bytes).to_string(),
    });
    if !matches!(image, Image::Soft(_) | Image::Module) {
        facts["parts"] = json!(parts);
        facts["idcode"] = json!(image.idcode().map(|idcode| format!("{idcode:#010x}")));
        facts["full"] = json!(image.full());
    }
    match image {
        Image::Bitstream(bitstream) => {
            if let Some(header) = &bitstream.header {
                facts["design"] = json!(header.design);
                facts["part_number"] = json!(header.part);
                facts["made"] = json!(format!("{} {}", header.date, header.time));
            }
            facts["crc_words"] = json!(bitstream.crc_words);
            facts["frame_bytes"] = json!(bitstream.frame_bytes);
        }
        Image::Module => {}
        Image::Pdi(pdi) => facts["loader_bytes"] = json!(pdi.loader_bytes),
        Image::Soft(soft) => {
            facts["logic"] = json!(soft.logic().iter().map(|it| it.name()).collect::<Vec<_>>());
            if let Some(vfpga) = soft.alone() {
                facts["vfpga"] = json!(vfpga);
            }
        }
    }
    facts
}

/// Prints facts, as JSON or a line each.
pub fn show(facts: &Value, as_json: bool) -> Result<()> {
    if as_json {
        return Ok(say(format_args!("{facts:#}\n"))?);
    }
    let lines = facts.as_object().into_iter().flatten();
    let lines: String =
        lines.map(|(name, value)| format!("{name:<13}{}\n", plain(value))).collect();
    Ok(say(format_args!("{lines}"))?)
}

/// A fact as a person reads it, without control characters.
fn plain(value: &Value) -> String {
    let list = |items: Vec<String>| {
        if items.is_empty() { "none that is known".to_owned() } else { items.join(", ") }
    };
    match value {
        Value::Null => "not said".into(),
        Value::Bool(value) => if *value { "yes" } else { "no" }.into(),
        Value::String(text) => text.replace(char::is_control, "?"),
        Value::Array(items) => list(items.iter().map(plain).collect()),
        Value::Object(items) => {
            list(items.iter().map(|(name, value)| format!("{name}: {}", plain(value))).collect())
        }
        Value::Number(number) => number.to_string(),
    }
}

fn read_image(file: &Path) -> Result<(Vec<u8>, Image)> {
    let bytes = read(file, MAX_IMAGE)?;
    let image = Image::parse(&bytes).map_err(|why| about(file, &why))?;
    Ok((bytes, image))
}

fn read_signature(file: &Path) -> Result<Signature> {
    Signature::parse(&read_text(file)?).map_err(|why| about(file, &why))
}

pub fn read_text(file: &Path) -> Result<String> {
    String::from_utf8(read(file, MAX_TEXT)?).map_err(|_| about(file, "it is no text"))
}

/// A whole file, that is one and not too large.
pub fn read(file: &Path, most: u64) -> Result<Vec<u8>> {
    let context = || file.display().to_string();
    // Opening anything but a file may take for ever.
    if !fs::metadata(file).with_context(context)?.is_file() {
        return Err(about(file, "it is no regular file"));
    }
    let mut bytes = Vec::new();
    let opened = fs::File::open(file).with_context(context)?;
    opened.take(most.saturating_add(1)).read_to_end(&mut bytes).with_context(context)?;
    if bytes.len() as u64 > most {
        bail!("{}: it has more than {most} bytes", file.display());
    }
    Ok(bytes)
}

/// Writes a file, new or in place of one.
fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    if fs::metadata(file).is_ok_and(|there| !there.is_file()) {
        return Err(about(file, "it is no regular file"));
    }
    fs::write(file, bytes).with_context(|| file.display().to_string())
}

pub fn about(file: &Path, why: &str) -> anyhow::Error {
    anyhow!("{}: {why}", file.display())
}
