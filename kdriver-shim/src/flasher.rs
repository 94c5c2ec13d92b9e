//! Images that a tool has loaded into cards: by turns, so that others are served meanwhile.
//!
//! The tool brings the whole image first, and nothing happens to the card. Then it asks for it to be loaded, or for the
//! one before: the image is examined aside ([`crate::images::examiner`]), and where the tool goes away meanwhile that was all.
//! Once loading has begun, balboad carries it through, even if the tool ends, and answers questions about it.
//!
//! A [`Flasher`] knows no server: it acts on its [`Surroundings`], and notes the work that has to follow there.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use bitstreams::digest::Sha256;
use card_driver::backend::Takes;
use card_driver::loading::Pace;
use shim_abi::{FlashState, Request, Response};

use crate::cards::find;
use crate::clients::{Client, Stage};
use crate::error::Error;
use crate::images::AGAIN;
use crate::images::examiner::{Brought, Examined, Examiner, Task};
use crate::images::record::Deed;
use crate::images::store::Store;
use crate::process::ClientId;
use crate::session::Progress;
use crate::state_dir::StateDir;
use crate::surroundings::Surroundings;

mod job;
mod upload;

use job::{Job, Phase};
#[cfg(test)]
pub use upload::UPLOAD_PATIENCE;
use upload::Upload;

/// How often a card is looked at that is at a chunk.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The loader of images into cards, one at a time.
pub struct Flasher {
    /// Records of images, and images.
    store: Store,
    state_dir: PathBuf,
    /// The thread that works on all the bytes of an image.
    examiner: Examiner,
    /// The image that a tool is bringing.
    upload: Option<Upload>,
    /// The card that is flashed.
    job: Option<Job>,
    /// How that ended for each card since balboad started.
    flashed: BTreeMap<u32, FlashState>,
    /// How images are sent.
    pace: Pace,
}

/// Whether a request is one of those served here.
pub fn is_flash(request: &Request) -> bool {
    matches!(
        request,
        Request::FlashOpen { .. }
            | Request::FlashWrite { .. }
            | Request::FlashApply { .. }
            | Request::FlashRollback { .. }
            | Request::FlashState { .. }
            | Request::FlashVerify { .. }
    )
}

impl Flasher {
    /// A flasher for the images of a state directory, from which it removes the unfinished files of an earlier balboad.
    ///
    /// # Errors
    /// [`Error::StateDir`] when the directory cannot be opened again, [`Error::Memory`] when descriptors run out.
    pub fn new(state: &StateDir) -> Result<Self, Error> {
        let store = || {
            Store::new(state.directory()).map_err(|error| Error::StateDir {
                dir: state.path().to_owned(),
                why: format!("it cannot be opened again: {error}"),
            })
        };
        let mut examiner = Examiner::new(store()?, state.path().to_owned())?;
        examiner.tidy();
        Ok(Self {
            store: store()?,
            state_dir: state.path().to_owned(),
            examiner,
            upload: None,
            job: None,
            flashed: BTreeMap::new(),
            pace: Pace::default(),
        })
    }

    /// Whether a tool brings an image, or a card is flashed.
    pub fn is_used(&self) -> bool {
        self.upload.is_some() || self.job.is_some()
    }

    /// The time without work for a flash.
    pub fn patience(&self) -> Option<Duration> {
        self.job.as_ref().map(|job| if job.waits { LOOK_AGAIN } else { Duration::ZERO })
    }

    /// Whether a flash can go on without waiting, or the examiner is free for a client that waits.
    pub fn has_work(&self) -> bool {
        let can_examine = !self.examiner.is_busy() && self.examiner.awaited() > 0;
        can_examine || self.job.as_ref().is_some_and(|job| !job.waits)
    }

    /// The finding about an image, and its client, once the examiner has it; a call of [`Flasher::go_on_examining`] has
    /// to follow.
    pub fn examined(&mut self) -> Option<(Option<ClientId>, Examined)> {
        self.examiner.ended()
    }

    /// Goes on after the use of a finding; `is_image` tells whether it was an image.
    pub fn go_on_examining(&mut self, is_image: bool) {
        if is_image && self.job.is_none() {
            // It was refused, or nobody wants it any more.
            self.examiner.tidy();
        }
        self.examiner.go_on();
    }

    /// The client that has waited longest for the examiner, if that is free. The next one, too, has its turn where this
    /// one does not need it any more.
    pub fn next_to_examine(&mut self) -> Option<ClientId> {
        self.examiner.next_client()
    }

    /// Serves a tool's request about images, with the examiner's finding about the request's image, if it has one.
    pub fn request(
        &mut self,
        around: &mut Surroundings<'_>,
        client: &Client,
        request: Request,
        found: Option<Examined>,
    ) -> Result<Progress, Error> {
        if client.stage != Stage::Tool {
            return Err(Error::Forbidden("a verbs program flashes no card; `balboa` does".into()));
        }
        match request {
            Request::FlashOpen { card, length, sha256, name, manifest } => {
                let sha256 = Sha256(sha256);
                let brought = Brought { name, manifest, sha256, bytes: Vec::new() };
                self.open_upload(around, client.id, card, length, brought)?;
            }
            Request::FlashWrite { bytes } => self.go_on_uploading(client.id, &bytes)?,
            Request::FlashApply { force } => {
                let Some(Examined::Image(card, image)) = found else {
                    return self.examine_upload(around, client.id);
                };
                self.flash_or_let_go(around, card, Deed::Flash, image?, force)?;
                log::warn!(client = client.process.pid; "balboa{card}: is flashed, as process {} asks for", client.process.pid);
            }
            Request::FlashRollback { card, force } => {
                let Some(Examined::Image(card, image)) = found else {
                    return self.examine_previous(around, client.id, card);
                };
                self.flash_or_let_go(around, card, Deed::Rollback, image?, force)?;
                log::warn!(client = client.process.pid; "balboa{card}: is rolled back, as process {} asks for", client.process.pid);
            }
            Request::FlashVerify { card } => {
                return self.verify_image(around, client.id, card, found);
            }
            Request::FlashState { card } => return Ok(self.flash_state(around, card)?.into()),
            _ => return Err(Error::Unsupported("this is not served here".into())),
        }
        Ok(Response::Done.into())
    }

    fn flash_state(
        &mut self,
        around: &mut Surroundings<'_>,
        number: u32,
    ) -> Result<Response, Error> {
        find(around.cards, number)?;
        let state = match self.job.as_ref().filter(|job| job.card == number) {
            Some(Job { phase: Phase::Leaving { .. }, .. }) => FlashState::Leaving,
            Some(Job { phase: Phase::Loading(loading), .. }) => {
                let (done, total) = loading.progress();
                FlashState::Loading { done, total }
            }
            None => self.flashed.get(&number).cloned().unwrap_or(FlashState::Idle),
        };
        Ok(Response::Flash(state))
    }

    /// Checks a card against its record.
    fn verify_image(
        &mut self,
        around: &mut Surroundings<'_>,
        client: ClientId,
        number: u32,
        found: Option<Examined>,
    ) -> Result<Progress, Error> {
        let card = find(around.cards, number)?;
        if let Some(why) = card.unusable.as_ref().or(card.failure.as_ref()) {
            return Err(Error::Invalid(format!("balboa{number}: {why}")));
        }
        if let Some((vfpga, why)) = card.record.vfpgas.first_key_value() {
            return Err(Error::Invalid(format!("balboa{number}: vFPGA {vfpga}: {AGAIN}: {why}")));
        }
        card.device.check_image()?;
        if card.record.current.is_none() {
            // Of a card that came with its bitstream only the manifest is known.
            return Ok(Response::Done.into());
        }
        let logic = card.record.current.as_ref().map_or(0, |image| image.logic.len());
        let regions = card.device.manifest.regions.map(usize::from);
        if regions != Some(logic) {
            return Err(Error::Invalid(format!(
                "balboa{number} has {regions:?} vFPGAs, and {logic} by its record"
            )));
        }
        let takes = card.device.backend.takes();
        if takes == Takes::SoftImages && !card.record.history.is_empty() {
            let sha256 = card.record.current.as_ref().map(|image| image.sha256.clone());
            let sha256 = sha256.unwrap_or_default();
            match found {
                Some(Examined::Kept(of, kept)) if of == sha256 => kept
                    .map_err(|why| Error::Invalid(format!("the image of balboa{number}: {why}")))?,
                // Another one has come meanwhile, or none was looked at yet.
                _ => return self.examine(client, Task::Verify(sha256)),
            }
        }
        Ok(Response::Done.into())
    }
}

/// The descriptor that is readable when a finding about an image is there.
impl AsFd for Flasher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.examiner.as_fd()
    }
}

/// The parts that tests of the server look at and set.
#[cfg(test)]
impl Flasher {
    /// The pace of sending images.
    pub fn pace(&mut self) -> &mut Pace {
        &mut self.pace
    }

    /// The examiner.
    pub fn examiner(&mut self) -> &mut Examiner {
        &mut self.examiner
    }

    /// Whether a tool is bringing an image.
    pub fn is_brought(&self) -> bool {
        self.upload.is_some()
    }

    /// Whether a card is flashed.
    pub fn is_flashing(&self) -> bool {
        self.job.is_some()
    }

    /// Makes the last piece of an upload so much older.
    pub fn age_upload(&mut self, by: Duration) {
        let upload = self.upload.as_mut().unwrap();
        upload.last = upload.last.checked_sub(by).unwrap();
    }
}
