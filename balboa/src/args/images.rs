//! The command lines of `balboa flash` and `balboa image`.

use std::path::PathBuf;

use bitstreams::soft::Logic;
use clap::{Args, Subcommand};

use super::{CardName, StateDir};

/// `balboa flash`.
#[derive(Debug, Subcommand)]
pub enum Flash {
    /// List the cards with the images that they have and had
    #[command(after_help = FLASH_EXIT)]
    List {
        /// The state directory of balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what an image is, for which part, who signed it, and how one of a whole device is loaded
    #[command(after_help = FLASH_EXIT)]
    Inspect {
        /// The image
        file: PathBuf,
        /// Where the public keys (NAME.pub) are that are trusted [default: /etc/balboa/keys]
        #[arg(long, value_name = "DIR")]
        keys: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what apply would do, and do nothing
    #[command(after_help = FLASH_EXIT)]
    Plan(Plan),
    /// Load an image into a card, once that was answered with yes
    #[command(after_help = FLASH_EXIT)]
    Apply {
        /// The file, and the card.
        #[command(flatten)]
        plan: Plan,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        /// Show what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Ask a card anew whether it is what its record says, and whether that is an image
    #[command(after_help = FLASH_EXIT)]
    Verify {
        /// The state directory of balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// The card, balboaN
        card: CardName,
        /// The image that it is to have
        file: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Load the image again that a card had before
    #[command(after_help = FLASH_EXIT)]
    Rollback {
        /// The state directory of balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// The card, balboaN
        card: CardName,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        /// Show what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
        /// Load it though nobody will see whether the card takes it, for it says the same of itself with another
        #[arg(long)]
        allow_unseen: bool,
        /// Disconnect the programs that have it open; they are told first that it is gone
        #[arg(long)]
        force_disconnect: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what was flashed into a card, and how that ended
    #[command(after_help = FLASH_EXIT)]
    History {
        /// The state directory of balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// The card, balboaN
        card: CardName,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// An image, and the card that is to have it.
#[derive(Debug, Args)]
pub struct Plan {
    /// The state directory of balboad.
    #[command(flatten)]
    pub state_dir: StateDir,
    /// The card, balboaN
    pub card: CardName,
    /// The image, with its signature beside it (FILE.minisig), or a manifest's that has its SHA-256
    pub file: PathBuf,
    /// Where the public keys (NAME.pub) are that are trusted [default: /etc/balboa/keys]
    #[arg(long, value_name = "DIR")]
    pub keys: Option<PathBuf>,
    /// Take an image, and a manifest, that has no signature
    #[arg(long)]
    pub allow_unsigned: bool,
    /// The manifest (.toml) of a bitstream, with its signature beside it: what the shell is, and for which part
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// Take a bitstream whose manifest says verified = false: that nobody has seen it work on a card
    #[arg(long)]
    pub allow_unverified: bool,
    /// Load it though nobody will see whether the card takes it, for it says the same of itself with another
    #[arg(long)]
    pub allow_unseen: bool,
    /// Disconnect the programs that have the card open; they are told first that it is gone
    #[arg(long)]
    pub force_disconnect: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `balboa image`.
#[derive(Debug, Subcommand)]
pub enum Image {
    /// Make the image of a software card
    #[command(after_help = IMAGE_EXIT)]
    Make {
        /// The logic of each vFPGA, the first one first; vqe, the queue engine, stock, as published, or the name of other logic
        #[arg(long, required = true, value_delimiter = ',', value_name = "LOGIC[,LOGIC...]")]
        soft: Vec<Logic>,
        /// Make it of this vFPGA alone, for a card that has others beside it
        #[arg(long, value_name = "N")]
        vfpga: Option<u8>,
        /// The file to write
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// Make the bitstream of a shell that stands for it, for a software card that plays an FPGA (part balboa), and for no device
        #[arg(long, conflicts_with = "vfpga")]
        bitstream: bool,
        /// Fill it up to so many bytes, so that it is as long as one of a real card
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1 << 30))]
        bytes: Option<u32>,
        /// Sign it with this secret key, too
        #[arg(long, value_name = "KEY")]
        sign: Option<PathBuf>,
    },
    /// Show what an image is, and for which part
    #[command(after_help = IMAGE_EXIT)]
    Inspect {
        /// The image: .bit, .bin, .pdi, or a software card's
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check a manifest (.toml) and those of its files that lie beside it, or an image
    #[command(after_help = IMAGE_EXIT)]
    Lint {
        /// The manifest, or the image
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Sign an image or a manifest: write FILE.minisig
    #[command(after_help = IMAGE_EXIT)]
    Sign {
        /// The image, or the manifest (.toml)
        file: PathBuf,
        /// The secret key, as minisign -G makes it
        #[arg(long, value_name = "KEY")]
        key: PathBuf,
    },
    /// Check an image or a manifest, and its signature, FILE.minisig
    #[command(after_help = IMAGE_EXIT)]
    Verify {
        /// The image, or the manifest (.toml)
        file: PathBuf,
        /// A public key that is trusted; may be repeated [default: all of /etc/balboa/keys/*.pub]
        #[arg(long, value_name = "KEY")]
        key: Vec<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) const FLASH_HELP: &str = "\
An image is checked before the card is touched, and the card behind it: where it does not come up as what the image is,
it is said that it needs to be flashed again, and never that it was. Programs that have it open are why it is refused;
with --force-disconnect they get IBV_EVENT_DEVICE_FATAL first, and those that keep it open for 5 s more are ended.
Its addresses stay. Once it has begun it goes on whatever becomes of this program. Images are signed as balboa image
tells. Only the user who runs balboad may flash. Software cards take the images of balboa image make, also those behind
VFIO; FPGAs take bitstreams of shells, by a manifest. An image of one vFPGA alone concerns the programs of that; the others go on.

Exit codes: 0 done, or all is right; 1 it could not be done, and the reason was told; 2 wrong arguments; 3 the answer
was no; 4 the file is truncated, or not what it was made as; 5 it is for another part or shell, or another image;
6 a signature is missing, or nobody's who is trusted; 7 programs have the card open, or another is flashed;
8 the card needs to be flashed again; 9 its manifest says that nobody has seen it work; 10 whether an FPGA takes it
nobody sees, for it says the same of itself with another: nothing was done, or it was loaded, as the sentence tells.

Examples:
  balboa flash list
  balboa flash plan balboa0 two.soft
  balboa flash apply balboa0 two.soft --keys ./keys --yes
  balboa flash verify balboa0 two.soft
  balboa flash rollback balboa0";

const FLASH_EXIT: &str = "\
Exit codes: 0 done, or all is right; 1 it could not be done, and the reason was told; 2 wrong arguments; 3 the answer
was no; 4 the file is truncated, or not what it was made as; 5 it is for another part or shell, or another image;
6 a signature is missing, or nobody's who is trusted; 7 programs have the card open, or another is flashed;
8 the card needs to be flashed again; 9 its manifest says that nobody has seen it work; 10 whether an FPGA takes it
nobody sees, for it says the same of itself with another: nothing was done, or it was loaded, as the sentence tells.";

pub(super) const IMAGE_HELP: &str = "\
Signatures are minisign's, beside the image as FILE.minisig. minisign -G makes a pair of keys; the public ones that
are trusted lie in /etc/balboa/keys, as NAME.pub. No balboad is asked, and no card is touched.

Exit codes: 0 done, or all is right; 1 it is not, or could not be done, and the reason was told; 2 wrong arguments.

Examples:
  balboa image make --soft vqe,vqe -o two.soft --sign minisign.key
  balboa image inspect shell_top.bin --json
  balboa image lint coyote-u55c.toml
  balboa image verify two.soft --key minisign.pub";

const IMAGE_EXIT: &str = "\
Exit codes: 0 done, or all is right; 1 it is not, or could not be done, and the reason was told; 2 wrong arguments.";
