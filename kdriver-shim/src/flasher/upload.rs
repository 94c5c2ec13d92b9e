//! An image as a tool brings it, piece by piece, and its way to the examiner.

use std::time::{Duration, Instant};

use shim_abi::{MAX_IMAGE, MAX_MANIFEST};

use super::Flasher;
use crate::cards::{Card, find};
use crate::error::Error;
use crate::images;
use crate::images::examiner::{Brought, TargetCard, Task};
use crate::process::ClientId;
use crate::session::Progress;
use crate::surroundings::Surroundings;

/// The time without a new piece after which another image may take an upload's place.
pub const UPLOAD_PATIENCE: Duration = Duration::from_secs(30);

/// An image as a tool brings it, piece by piece.
pub(super) struct Upload {
    client: ClientId,
    card: u32,
    length: u64,
    brought: Brought,
    /// When the last piece came.
    pub(super) last: Instant,
}

impl Flasher {
    /// Begins an image of that length, of which no byte is there yet.
    pub(super) fn open_upload(
        &mut self,
        around: &mut Surroundings<'_>,
        client: ClientId,
        card: u32,
        length: u64,
        brought: Brought,
    ) -> Result<(), Error> {
        find(around.cards, card)?;
        let manifest = &brought.manifest;
        if manifest.len() > MAX_MANIFEST {
            return Err(Error::Invalid(format!(
                "a manifest has {MAX_MANIFEST} bytes at most, not {}",
                manifest.len()
            )));
        }
        if length == 0 || length > MAX_IMAGE {
            return Err(Error::Invalid(format!(
                "an image has 1 to {MAX_IMAGE} bytes, not {length}"
            )));
        }
        self.forget_upload(client);
        let now = Instant::now();
        if let Some(other) = &self.upload {
            if !self.is_left(around, other, now) {
                return Err(Error::Occupied(
                    "another image is being brought; wait for that".into(),
                ));
            }
            let other = other.client;
            log::warn!("an image that a tool has left half brought gives its place to another");
            self.forget_upload(other);
        }
        self.upload = Some(Upload { client, card, length, brought, last: now });
        Ok(())
    }

    /// Whether the tool that brings an image has said nothing for long, and waits for nothing.
    fn is_left(&self, around: &mut Surroundings<'_>, upload: &Upload, now: Instant) -> bool {
        let waits = around.clients.get(&upload.client).is_some_and(|it| it.put_off.is_some());
        !waits && now.saturating_duration_since(upload.last) >= UPLOAD_PATIENCE
    }

    /// Drops a client's unfinished upload.
    pub fn forget_upload(&mut self, client: ClientId) {
        if let Some(upload) = self.upload.take_if(|upload| upload.client == client) {
            images::let_go(upload.brought);
        }
    }

    pub(super) fn go_on_uploading(&mut self, client: ClientId, bytes: &[u8]) -> Result<(), Error> {
        let upload = self.upload.as_mut().filter(|upload| upload.client == client);
        let upload = upload.ok_or_else(|| Error::Invalid("no image was announced".into()))?;
        let there = (upload.brought.bytes.len() as u64).saturating_add(bytes.len() as u64);
        if there > upload.length {
            let length = upload.length;
            self.forget_upload(client);
            return Err(Error::Invalid(format!("{there} bytes came of an image of {length}")));
        }
        upload.brought.bytes.extend_from_slice(bytes);
        upload.last = Instant::now();
        Ok(())
    }

    /// Gives a client's image to the examiner, if all announced bytes are there.
    pub(super) fn examine_upload(
        &mut self,
        around: &mut Surroundings<'_>,
        client: ClientId,
    ) -> Result<Progress, Error> {
        let upload = self.upload.take_if(|upload| upload.client == client);
        let upload = upload.ok_or_else(|| Error::Invalid("no image was brought".into()))?;
        let (there, length) = (upload.brought.bytes.len() as u64, upload.length);
        let whole = match there == length {
            true => self.check_no_other(),
            false => Err(Error::Invalid(format!("{there} bytes came of an image of {length}"))),
        };
        if let Err(error) = whole {
            images::let_go(upload.brought);
            return Err(error);
        }
        if self.examiner.is_busy() {
            self.upload = Some(upload);
            self.examiner.wait(client);
            return Ok(Progress::Waits);
        }
        let target = target(find(around.cards, upload.card)?);
        self.examine(client, Task::Check(target, upload.brought))
    }

    /// Gives the image that a card had before to the examiner.
    pub(super) fn examine_previous(
        &mut self,
        around: &mut Surroundings<'_>,
        client: ClientId,
        number: u32,
    ) -> Result<Progress, Error> {
        let card = find(around.cards, number)?;
        let name = card.record.previous.clone().ok_or_else(|| {
            Error::Invalid(format!("balboa{number} had no other image that could be put back"))
        })?;
        let target = target(card);
        self.check_no_other()?;
        self.examine(client, Task::Read(target, name))
    }

    pub(super) fn examine(&mut self, client: ClientId, task: Task) -> Result<Progress, Error> {
        match self.examiner.is_busy() {
            true => self.examiner.wait(client),
            false => self.examiner.begin(client, task)?,
        }
        Ok(Progress::Waits)
    }
}

/// A card for which an image is examined.
fn target(card: &Card) -> TargetCard {
    let (takes, like) = (card.device.backend.takes(), card.device.manifest.clone());
    TargetCard { card: card.device.number, takes, like }
}
