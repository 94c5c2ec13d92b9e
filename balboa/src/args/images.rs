//! The command lines of `balboa flash` and `balboa image`.

use std::path::PathBuf;

use bitstreams::soft::Logic;
use clap::{Args, Subcommand};

use super::{CardName, StateDir};

/// `balboa flash`.
#[derive(Debug, Subcommand)]
pub enum Flash {
    /// List the cards with their present and earlier images
    #[command(after_help = FLASH_EXIT)]
    List {
        /// The state directory of balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the kind, the part and the signer of an image, and how an image of a whole device is loaded
    #[command(after_help = FLASH_EXIT)]
    Inspect {
        /// The image
        file: PathBuf,
        /// Trust the public keys (NAME.pub) in this directory [default: /etc/balboa/keys]
        #[arg(long, value_name = "DIR")]
        keys: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the steps of apply, and do nothing
    #[command(after_help = FLASH_EXIT)]
    Plan(Plan),
    /// Load an image into a card, after asking for confirmation
    #[command(after_help = FLASH_EXIT)]
    Apply {
        /// The file, and the card.
        #[command(flatten)]
        plan: Plan,
        /// Load without asking for confirmation
        #[arg(short, long)]
        yes: bool,
        /// Show the steps, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Ask a card again for its identity, and compare it with the record and with an image
    #[command(after_help = FLASH_EXIT)]
    Verify {
        /// The state directory of balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// The card, balboaN
        card: CardName,
        /// The image that the card should have
        file: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Load the previous image of a card again
    #[command(after_help = FLASH_EXIT)]
    Rollback {
        /// The state directory of balboad.
        #[command(flatten)]
        state_dir: StateDir,
        /// The card, balboaN
        card: CardName,
        /// Load without asking for confirmation
        #[arg(short, long)]
        yes: bool,
        /// Show the steps, and do nothing
        #[arg(long)]
        dry_run: bool,
        /// Load the image although the card describes itself alike before and after, so that success cannot be seen
        #[arg(long)]
        allow_unseen: bool,
        /// Disconnect the programs that have the card open, after an event that tells them
        #[arg(long)]
        force_disconnect: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the images that were flashed into a card, with the outcome of each
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
    /// The image, signed by FILE.minisig beside it, or by the signed manifest that has its SHA-256
    pub file: PathBuf,
    /// Trust the public keys (NAME.pub) in this directory [default: /etc/balboa/keys]
    #[arg(long, value_name = "DIR")]
    pub keys: Option<PathBuf>,
    /// Accept an image, and a manifest, without a signature
    #[arg(long)]
    pub allow_unsigned: bool,
    /// Describe a bitstream's shell and part by this manifest (.toml), with its signature beside it
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// Accept a bitstream whose manifest says verified = false: nobody has seen it work on a card
    #[arg(long)]
    pub allow_unverified: bool,
    /// Load the image although the card describes itself alike before and after, so that success cannot be seen
    #[arg(long)]
    pub allow_unseen: bool,
    /// Disconnect the programs that have the card open, after an event that tells them
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
        /// Put this logic into the vFPGAs, the first one first: vqe, the queue engine; stock, as published; or the name
        /// of other logic
        #[arg(long, required = true, value_delimiter = ',', value_name = "LOGIC[,LOGIC...]")]
        soft: Vec<Logic>,
        /// Make the image of this vFPGA alone, for a card that has others beside it
        #[arg(long, value_name = "N")]
        vfpga: Option<u8>,
        /// Write the image to this file
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        /// Make the bitstream of a shell that stands for the image, for software cards that play an FPGA (part balboa),
        /// not for a device
        #[arg(long, conflicts_with = "vfpga")]
        bitstream: bool,
        /// Pad the image to N bytes, so that it is as long as one of a real card
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1 << 30))]
        bytes: Option<u32>,
        /// Sign the image with this secret key
        #[arg(long, value_name = "KEY")]
        sign: Option<PathBuf>,
    },
    /// Show the kind and the part of an image
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
    /// Sign an image or a manifest, in FILE.minisig
    #[command(after_help = IMAGE_EXIT)]
    Sign {
        /// The image, or the manifest (.toml)
        file: PathBuf,
        /// Sign with this secret key, as minisign -G makes it
        #[arg(long, value_name = "KEY")]
        key: PathBuf,
    },
    /// Check an image or a manifest, and its signature, FILE.minisig
    #[command(after_help = IMAGE_EXIT)]
    Verify {
        /// The image, or the manifest (.toml)
        file: PathBuf,
        /// Trust this public key; may be repeated [default: all of /etc/balboa/keys/*.pub]
        #[arg(long, value_name = "KEY")]
        key: Vec<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) const FLASH_HELP: &str = "\
balboad checks the image before it touches the card, and the card afterwards: if the card does not come up as the image
says, balboa reports that it needs to be flashed again. While programs have the card open, balboad refuses; with
--force-disconnect it sends them IBV_EVENT_DEVICE_FATAL, and ends those that keep the card open for 5 s more. The card
keeps its addresses. Flashing that has begun goes on even if this program ends. Images are signed as balboa image
--help tells. Only the user who runs balboad may flash. Software cards, also those behind VFIO, take the images of balboa
image make; FPGAs take bitstreams of shells, by a manifest. An image of one vFPGA disturbs the programs of that vFPGA
alone.

Exit codes: 0 done, or all is right; 1 failed, for the reason that was printed; 2 wrong arguments; 3 you declined; 4 the
file is truncated or altered; 5 the image is for another part or shell, or is another image; 6 the signature is missing,
or not by a trusted key; 7 programs have the card open, or another card is being flashed; 8 the card needs to be flashed
again; 9 the manifest says that nobody has seen the image work; 10 an FPGA describes itself alike before and after, so
that success cannot be seen: the message tells whether the image was loaded.

Examples:
  balboa flash list
  balboa flash plan balboa0 two.soft
  balboa flash apply balboa0 two.soft --keys ./keys --yes
  balboa flash verify balboa0 two.soft
  balboa flash rollback balboa0";

const FLASH_EXIT: &str = "\
Exit codes: 0 done, or all is right; 1 failed, for the reason that was printed; 2 wrong arguments; 3 you declined; 4 the
file is truncated or altered; 5 the image is for another part or shell, or is another image; 6 the signature is missing,
or not by a trusted key; 7 programs have the card open, or another card is being flashed; 8 the card needs to be flashed
again; 9 the manifest says that nobody has seen the image work; 10 an FPGA describes itself alike before and after, so
that success cannot be seen: the message tells whether the image was loaded.";

pub(super) const IMAGE_HELP: &str = "\
Signatures are minisign's, in FILE.minisig beside the image. minisign -G makes a pair of keys; trusted public keys lie in
/etc/balboa/keys as NAME.pub. The commands need no balboad, and touch no card.

Exit codes: 0 done, or all is right; 1 wrong or failed, for the reason that was printed; 2 wrong arguments.

Examples:
  balboa image make --soft vqe,vqe -o two.soft --sign minisign.key
  balboa image inspect shell_top.bin --json
  balboa image lint coyote-u55c.toml
  balboa image verify two.soft --key minisign.pub";

const IMAGE_EXIT: &str = "\
Exit codes: 0 done, or all is right; 1 wrong or failed, for the reason that was printed; 2 wrong arguments.";
