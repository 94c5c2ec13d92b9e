//! The fields of a manifest that balboad does not need: the board, the files, where they come from.

use serde::Deserialize;

use crate::digest::Sha256;
use crate::image::Image;
use crate::part::{self, PARTS, Part};

/// The board of software cards.
pub const SOFT: &str = "soft";
/// Bytes of the longest line of text.
const MAX_TEXT: usize = 256;
/// Services that a shell can be built with.
const SERVICES: [&str; 5] = ["memory", "rdma", "reconfiguration", "sniffer", "tcp"];
/// The fastest clock in MHz: none of these devices runs faster.
const MAX_CLOCK: u32 = 1000;

/// The details of a bitstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// The board's name: that of a part's, or [`SOFT`].
    pub board: Option<String>,
    /// The part number.
    pub part: Option<String>,
    /// The IDCODE of the part.
    pub idcode: Option<u32>,
    /// The value of the shell's register PROBE.
    pub shell_probe: Option<u32>,
    /// The services with which the shell is built.
    pub services: Vec<String>,
    /// Its clocks.
    pub clocks: Clocks,
    /// Its files.
    pub files: Vec<ImageFile>,
    /// The source of the file.
    pub source: Option<Source>,
    /// Whether it was tried on a card, and all files are given by their digests.
    pub verified: bool,
}

/// Clocks in MHz.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// The shell's.
    pub shell: Option<u32>,
    /// The network stack's.
    pub network: Option<u32>,
    /// The vFPGAs'.
    pub user: Option<u32>,
}

/// A file of a bitstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFile {
    /// Its name, in the manifest's folder.
    pub name: String,
    /// The part of a card into which it is loaded.
    pub kind: FileKind,
    /// The vFPGA that it is for, where it is for one.
    pub region: Option<u8>,
    /// Its bytes.
    pub length: Option<u64>,
    /// Its digest.
    pub sha256: Option<Sha256>,
    /// The name of its signature's file.
    pub signature: Option<String>,
}

/// The part of a card into which a file is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A whole device.
    Full,
    /// A shell, with its vFPGAs.
    Shell,
    /// One vFPGA.
    Vfpga,
    /// A software card.
    Soft,
}

/// The source of a bitstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The address where it, or its source, is published.
    pub url: String,
    /// How it is built.
    pub build: Option<String>,
    /// The commit that it is built from, 40 hexadecimal digits.
    pub commit: Option<String>,
    /// The faults that that commit has mended.
    pub mends: Mends,
}

/// Faults of the published shell that builds have or have not, by their numbers in `docs/stock-card.md`: a fault that a
/// manifest does not name as mended counts as there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mends {
    /// `windows`: each look-up of a window reads that of its QP (STOCK-41).
    pub windows: bool,
    /// `selection`: no WRITE leaves without the selection of its payload (STOCK-42).
    pub selection: bool,
}

impl Mends {
    /// All of them.
    pub const ALL: Self = Self { windows: true, selection: true };
}

/// Digits of a commit.
const COMMIT_DIGITS: usize = 40;
/// Commits of Coyote and a fork whose windows were read to be faulty.
const FAULTY_WINDOWS: [&str; 2] =
    ["999e487f731ed0c989a35425d6dabbe945fa0925", "f0d450f21ab96c04f51fa09ee27f373c13bd1991"];

/// `[clocks]` as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawClocks {
    shell: Option<u32>,
    network: Option<u32>,
    user: Option<u32>,
}

/// `[[files]]` as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawFile {
    name: String,
    kind: FileKind,
    region: Option<u8>,
    length: Option<u64>,
    sha256: Option<String>,
    signature: Option<String>,
}

/// `[source]` as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawSource {
    url: String,
    build: Option<String>,
    commit: Option<String>,
    #[serde(default)]
    mended: Vec<String>,
}

impl RawSource {
    /// The faults that the commit has mended, as the manifest says.
    fn mends(&self) -> Result<Mends, String> {
        let commit = self.commit.as_deref();
        let is_digit = |digit: char| matches!(digit, '0'..='9' | 'a'..='f');
        let is_commit = |text: &&str| text.len() == COMMIT_DIGITS && text.chars().all(is_digit);
        if let Some(other) = commit.filter(|text| !is_commit(text)) {
            let other = other.escape_default();
            return Err(format!(
                "source.commit = \"{other}\": write its {COMMIT_DIGITS} hexadecimal digits"
            ));
        }
        if commit.is_none() && !self.mended.is_empty() {
            return Err("source.mended: write the commit that has it mended, too".into());
        }
        let mut mends = Mends::default();
        for name in &self.mended {
            match name.as_str() {
                "windows" if commit.is_some_and(|commit| FAULTY_WINDOWS.contains(&commit)) => {
                    return Err(
                        "source.mended: the windows of this commit are faulty; leave windows out"
                            .into(),
                    );
                }
                "windows" => mends.windows = true,
                "selection" => mends.selection = true,
                other => {
                    let other = other.escape_default();
                    return Err(format!(
                        "source.mended: there is no \"{other}\"; write windows, selection"
                    ));
                }
            }
        }
        Ok(mends)
    }
}

impl Details {
    /// Those of a board and its part, which must belong to each other.
    ///
    /// # Errors
    /// The fault, and the mend; so all of these.
    pub(crate) fn of(
        board: Option<&str>,
        number: Option<&str>,
        idcode: Option<u32>,
    ) -> Result<Self, String> {
        let boards = || PARTS.iter().map(|part| part.board).collect::<Vec<_>>().join(", ");
        let known = |board: &str| board == SOFT || PARTS.iter().any(|part| part.board == board);
        if let Some(board) = board.filter(|board| !known(board)) {
            let board = board.escape_default();
            return Err(format!("board = \"{board}\": write {SOFT}, or one of {}", boards()));
        }
        let part = match number {
            None => None,
            Some(number) => Some(part::of_number(number).ok_or_else(|| {
                let number = number.escape_default();
                format!("part = \"{number}\": it is of none of the boards {}", boards())
            })?),
        };
        if let Some(right) = part.map(|part| part.board).filter(|right| board != Some(*right)) {
            let number = number.unwrap_or_default().escape_default();
            return Err(format!("part = \"{number}\" is the {right}'s; write board = \"{right}\""));
        }
        if let Some(idcode) = idcode {
            let shown = format!("idcode = {idcode:#010x}");
            let part = part.ok_or_else(|| format!("{shown}: write the part that has it, too"))?;
            if let Some(right) = part.idcode.filter(|right| !part::same_device(*right, idcode)) {
                return Err(format!("{shown}: that of {} is {right:#010x}", part.name));
            }
        }
        let (board, part) = (board.map(str::to_owned), number.map(str::to_owned));
        Ok(Self { board, part, idcode, ..Self::default() })
    }

    pub(crate) fn set_services(&mut self, services: &[String]) -> Result<(), String> {
        for service in services {
            let shown = service.escape_default();
            if !SERVICES.contains(&service.as_str()) {
                return Err(format!(
                    "services: there is no \"{shown}\"; write {}",
                    SERVICES.join(", ")
                ));
            }
            if self.services.contains(service) {
                return Err(format!("services: \"{shown}\" is there twice; write it once"));
            }
            self.services.push(service.clone());
        }
        Ok(())
    }

    pub(crate) fn set_clocks(&mut self, clocks: Option<RawClocks>) -> Result<(), String> {
        let Some(RawClocks { shell, network, user }) = clocks else { return Ok(()) };
        for (name, value) in [("shell", shell), ("network", network), ("user", user)] {
            if let Some(value) = value.filter(|value| !(1..=MAX_CLOCK).contains(value)) {
                return Err(format!("clocks.{name} = {value}: write MHz, from 1 to {MAX_CLOCK}"));
            }
        }
        self.clocks = Clocks { shell, network, user };
        Ok(())
    }

    pub(crate) fn set_files(
        &mut self,
        files: Vec<RawFile>,
        regions: Option<u8>,
    ) -> Result<(), String> {
        for file in files {
            let RawFile { name, kind, region, length, sha256, signature } = file;
            for (field, text) in [("name", Some(&name)), ("signature", signature.as_ref())] {
                if let Some(text) = text.filter(|text| !is_file_name(text)) {
                    let text = text.escape_default();
                    return Err(format!(
                        "files.{field} = \"{text}\": write the name of a file in the manifest's folder"
                    ));
                }
            }
            if self.files.iter().any(|it| it.name == name) {
                return Err(format!("files.name = \"{name}\" is there twice; write it once"));
            }
            match (kind, region) {
                (FileKind::Vfpga, None) => {
                    return Err(format!("files: {name} is for a vFPGA; write region, from 0 on"));
                }
                (FileKind::Vfpga, Some(region)) if regions.is_some_and(|all| region >= all) => {
                    return Err(format!(
                        "files: {name} has region = {region}, and there are regions = {}; count from 0",
                        regions.unwrap_or_default()
                    ));
                }
                (FileKind::Vfpga, Some(_)) | (_, None) => {}
                (_, Some(region)) => {
                    return Err(format!(
                        "files: {name} has region = {region}, and kind vfpga alone has one; leave it out"
                    ));
                }
            }
            if (kind == FileKind::Soft) != (self.board.as_deref() == Some(SOFT)) {
                return Err(format!(
                    "files: {name}: kind soft and board = \"{SOFT}\" belong together; correct one"
                ));
            }
            if length == Some(0) {
                return Err(format!("files: {name} has length = 0; write its bytes"));
            }
            let digest = sha256.map(|text| text.parse::<Sha256>()).transpose();
            let sha256 = digest.map_err(|why| format!("files: sha256 of {name}: {why}"))?;
            self.files.push(ImageFile { name, kind, region, length, sha256, signature });
        }
        Ok(())
    }

    pub(crate) fn set_source(&mut self, source: Option<RawSource>) -> Result<(), String> {
        let Some(source) = source else { return Ok(()) };
        let mends = source.mends()?;
        let RawSource { url, build, commit, .. } = source;
        if !url.starts_with("https://") || !is_line(&url) {
            let url = url.escape_default();
            return Err(format!("source.url = \"{url}\": write one that begins with https://"));
        }
        if build.as_deref().is_some_and(|build| !is_line(build)) {
            return Err(format!("source.build: write one line of at most {MAX_TEXT} bytes"));
        }
        self.source = Some(Source { url, build, commit, mends });
        Ok(())
    }

    pub(crate) fn set_verified(&mut self, verified: bool) -> Result<(), String> {
        let known = |file: &ImageFile| file.length.is_some() && file.sha256.is_some();
        if verified && (self.files.is_empty() || !self.files.iter().all(known)) {
            return Err(
                "verified = true: write length and sha256 of every file, or verified = false"
                    .into(),
            );
        }
        self.verified = verified;
        Ok(())
    }

    /// Checks that bytes are those of a file of this manifest with so many vFPGAs, and returns the image.
    ///
    /// # Errors
    /// The fault, and the expected value.
    pub fn check_file(
        &self,
        file: &ImageFile,
        regions: Option<u8>,
        bytes: &[u8],
    ) -> Result<Image, String> {
        self.check_known(file, regions, bytes, Sha256::of(bytes))
    }

    /// The same of bytes of which the digest is known.
    pub(crate) fn check_known(
        &self,
        file: &ImageFile,
        regions: Option<u8>,
        bytes: &[u8],
        found: Sha256,
    ) -> Result<Image, String> {
        let there = bytes.len() as u64;
        if let Some(length) = file.length.filter(|length| *length != there) {
            return Err(format!(
                "it has {there} bytes, and {length} by its manifest; copy it again"
            ));
        }
        if let Some(said) = file.sha256.filter(|said| *said != found) {
            return Err(format!(
                "its SHA-256 is {found}, and {said} by its manifest; copy it again"
            ));
        }
        let image = Image::parse(bytes)?;
        self.check_part(&image)?;
        let full = image.full();
        let right = match file.kind {
            FileKind::Soft => matches!(image, Image::Soft(_)),
            FileKind::Full => full == Some(true),
            FileKind::Shell | FileKind::Vfpga => full == Some(false),
        };
        if !right && (full.is_some() || file.kind == FileKind::Soft) {
            let what = image.describe();
            return Err(format!(
                "it is {what}, which does not fit its kind in the manifest; correct kind"
            ));
        }
        let logic = match &image {
            Image::Soft(soft) => Some(soft.logic().len()),
            _ => None,
        };
        if let (Some(logic), Some(regions)) = (logic, regions) {
            if logic != usize::from(regions) {
                return Err(format!(
                    "it has logic for {logic} vFPGAs, and {regions} by its manifest; correct regions"
                ));
            }
        }
        Ok(image)
    }

    /// Checks that an image is for this part, as far as both tell.
    fn check_part(&self, image: &Image) -> Result<(), String> {
        let Some(wanted) = self.part.as_deref().and_then(part::of_number) else { return Ok(()) };
        let other = |found: &str| {
            let wanted = wanted.name;
            Err(format!(
                "it is for {found}, and its manifest is {wanted}'s; give the {wanted}'s file"
            ))
        };
        if matches!(image, Image::Soft(_)) {
            return other("software cards");
        }
        let parts: Vec<&Part> = image.parts();
        let names = parts.iter().map(|part| part.name).collect::<Vec<_>>().join(" or ");
        if !parts.is_empty() && !parts.contains(&wanted) {
            return other(&names);
        }
        let wanted_idcode = self.idcode.or(wanted.idcode);
        match (image.idcode(), wanted_idcode) {
            (Some(found), Some(wanted)) if !part::same_device(found, wanted) => {
                other(&format!("IDCODE {found:#010x}"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a text is one line that is not too long.
fn is_line(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_TEXT && !text.contains(char::is_control)
}

/// Whether a text names a file in the same folder.
fn is_file_name(text: &str) -> bool {
    is_line(text) && !text.contains('/') && text != "." && text != ".."
}

#[cfg(test)]
#[path = "details/tests.rs"]
mod tests;
