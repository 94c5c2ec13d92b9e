//! A tool's connection to balboad.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::unistd::geteuid;
use shim_abi::{
    CardInfo, FlashState, Pinged, Qos, Refusal, Request, Response, Role, SOCKET_NAME, ServiceChain,
    ServiceUsers,
};
use shim_client::{ConnectError, Error};

/// How long one answer of balboad may take, seconds.
const ANSWER_SECONDS: u32 = 5;
/// Longest state that is believed, bytes.
const MAX_STATUS: u64 = 64 << 20;
/// Bytes of an image in one message, which has room for some more.
const PIECE: usize = 60 << 10;
/// Characters of an image's name that are told.
const MAX_NAME: usize = 64;
/// How often a balboad that is not there yet is looked for.
const RETRY: Duration = Duration::from_millis(20);

/// Why there is no talking to balboad.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing, or no socket, at the path.
    #[error(
        "no balboad serves {}: start one with `balboad --soft 2 --state-dir {}`, or name the directory of a running one with --state-dir",
        dir.display(), dir.display()
    )]
    NoBalboad {
        /// State directory.
        dir: PathBuf,
    },
    /// A file in the directory's place.
    #[error(
        "{} is not a directory: --state-dir takes the directory that balboad was started with",
        .0.display()
    )]
    NotADirectory(PathBuf),
    /// The directory belongs to another user.
    #[error(
        "the state directory {} belongs to uid {owner}, and balboad serves only its own user: run this as uid {owner}, or start a balboad of your own (uid {own})",
        dir.display()
    )]
    SomeoneElses {
        /// State directory.
        dir: PathBuf,
        /// Its owner.
        owner: u32,
        /// The caller.
        own: u32,
    },
    /// Others may put things into the directory.
    #[error(
        "others can write to the state directory {} (mode {mode:03o}), and could pose as balboad: run chmod 700 on it",
        dir.display()
    )]
    Open {
        /// State directory.
        dir: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another user's process serves the socket.
    #[error(
        "{} is served by uid {uid}, who is neither you (uid {own}) nor root: remove it, and start balboad again",
        path.display()
    )]
    ForeignBalboad {
        /// The socket.
        path: PathBuf,
        /// The user that serves it.
        uid: u32,
        /// The caller.
        own: u32,
    },
    /// A socket without a listener.
    #[error(
        "{} is left over from a balboad that has ended (its socket is there but nobody listens): start balboad again with --state-dir {}",
        dir.display(), dir.display()
    )]
    Stale {
        /// State directory.
        dir: PathBuf,
    },
    /// The connection cannot be made for another reason.
    #[error("cannot {what} {}: {errno}", path.display())]
    Connect {
        /// The step that failed.
        what: &'static str,
        /// The path that it was tried on.
        path: PathBuf,
        /// Why not.
        errno: io::Error,
    },
    /// balboad was there but gave no answer.
    #[error(
        "balboad in {} does not answer ({why}): look at its log, and restart it if it hangs",
        dir.display()
    )]
    Silent {
        /// State directory.
        dir: PathBuf,
        /// The error of the socket.
        why: String,
    },
    /// balboad refused.
    #[error("balboad refused: {reason}")]
    Refused {
        /// The error number that it has for it.
        errno: i32,
        /// Why.
        reason: String,
    },
    /// The answer does not fit the request.
    #[error("balboad in {} and this balboa do not understand each other: {why}", dir.display())]
    Misunderstood {
        /// State directory.
        dir: PathBuf,
        /// The answer's fault.
        why: String,
    },
}

/// A balboad's description of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Its process, where it runs.
    pub pid: u32,
    /// Number of its network namespace; 0 where the kernel does not tell.
    pub network_namespace: u64,
    /// The words of its command line behind the program.
    pub options: Vec<String>,
}

/// A client of balboad as [`Role::Tool`].
#[derive(Debug)]
pub struct ToolClient {
    dir: PathBuf,
    balboad: shim_client::Client,
}

impl ToolClient {
    /// Connects to the balboad of `dir`, and waits for one that is not there yet.
    ///
    /// # Errors
    /// The error of the last try. A path that no waiting can mend fails at once.
    pub fn connect(dir: &Path, patience: Duration) -> Result<Self, ClientError> {
        let deadline = Instant::now() + patience;
        loop {
            match Self::try_connect(dir) {
                Err(ClientError::NoBalboad { .. } | ClientError::Stale { .. })
                    if Instant::now() < deadline => {}
                outcome => return outcome,
            }
            std::thread::sleep(RETRY);
        }
    }

    fn try_connect(dir: &Path) -> Result<Self, ClientError> {
        check_dir(dir)?;
        let failed = |error| {
            let (dir, path) = (dir.to_owned(), dir.join(SOCKET_NAME));
            match error {
                ConnectError::Socket { errno: Errno::ENOENT, .. } => ClientError::NoBalboad { dir },
                ConnectError::Socket { errno: Errno::ECONNREFUSED, .. } => {
                    ClientError::Stale { dir }
                }
                ConnectError::Socket { what, errno } => {
                    ClientError::Connect { what, path, errno: errno.into() }
                }
                ConnectError::Foreign { uid } => {
                    ClientError::ForeignBalboad { path, uid, own: geteuid().as_raw() }
                }
            }
        };
        let balboad = shim_client::Client::connect(dir, ANSWER_SECONDS).map_err(failed)?;
        let mut client = Self { dir: dir.to_owned(), balboad };
        let greeted = client.balboad.greet(env!("CARGO_PKG_VERSION").to_owned(), Role::Tool);
        greeted.map_err(|error| client.failed(error))?;
        Ok(client)
    }

    /// The cards balboad has.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn cards(&mut self) -> Result<Vec<CardInfo>, ClientError> {
        match self.ask(&Request::ListCards)? {
            (Response::Cards(cards), _) => match cards.iter().find(|card| !is_sound(card)) {
                None => Ok(cards),
                Some(card) => Err(self.misunderstood(format!("{card:?} as a card"))),
            },
            (other, _) => Err(self.misunderstood(format!("{other:?} as the list of cards"))),
        }
    }

    /// Asks this balboad for its description.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn introduce(&mut self) -> Result<Introduction, ClientError> {
        match self.ask(&Request::Introduce)? {
            (Response::Balboad { pid, network_namespace, options }, _) => {
                Ok(Introduction { pid, network_namespace, options })
            }
            (other, _) => Err(self.misunderstood(format!("{other:?} as who it is"))),
        }
    }

    /// Asks which host has an address.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn ping(&mut self, card: Option<u32>, address: [u8; 16]) -> Result<Pinged, ClientError> {
        match self.ask(&Request::Ping { card, address })? {
            (Response::Pinged(pinged), _) => Ok(pinged),
            (other, _) => Err(self.misunderstood(format!("{other:?} as who is there"))),
        }
    }

    /// The whole state, as balboad's JSON text.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn status(&mut self) -> Result<String, ClientError> {
        let (response, mut fds) = self.ask(&Request::Status)?;
        let (length, text) = match (&response, fds.pop()) {
            (&Response::Status { length }, Some(text)) if length <= MAX_STATUS => {
                (length, File::from(text))
            }
            _ => return Err(self.misunderstood(format!("{response:?} as the state"))),
        };
        let mut bytes = vec![0; length as usize];
        text.read_exact_at(&mut bytes, 0).map_err(|why| self.misunderstood(why.to_string()))?;
        String::from_utf8(bytes).map_err(|why| self.misunderstood(why.to_string()))
    }

    /// Takes a card's port off its cable, or puts it back.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn set_link(&mut self, card: u32, up: bool) -> Result<(), ClientError> {
        match self.ask(&Request::SetLink { card, up })? {
            (Response::Done, _) => Ok(()),
            (other, _) => Err(self.misunderstood(format!("{other:?} as the change of a link"))),
        }
    }

    /// Gives a card's port an address; its index.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn add_gid(&mut self, card: u32, gid: [u8; 16], vlan: u16) -> Result<u8, ClientError> {
        match self.ask(&Request::AddGid { card, gid, vlan })? {
            (Response::Gid { index }, _) => Ok(index),
            (other, _) => Err(self.misunderstood(format!("{other:?} as the index of an address"))),
        }
    }

    /// Takes an address from a card's port.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn del_gid(&mut self, card: u32, gid: [u8; 16], vlan: u16) -> Result<(), ClientError> {
        match self.ask(&Request::DelGid { card, gid, vlan })? {
            (Response::Done, _) => Ok(()),
            (other, _) => Err(self.misunderstood(format!("{other:?} as the end of an address"))),
        }
    }

    /// Resets a card; how many programs have it open still.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn reset(&mut self, card: u32) -> Result<u32, ClientError> {
        match self.ask(&Request::ResetCard { card })? {
            (Response::Reset { programs }, _) => Ok(programs),
            (other, _) => Err(self.misunderstood(format!("{other:?} as the end of a reset"))),
        }
    }

    /// The settings of a port's priorities.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn qos(&mut self, card: u32) -> Result<Qos, ClientError> {
        match self.ask(&Request::QueryQos { card })? {
            (Response::Qos(qos), _) => Ok(qos),
            (other, _) => Err(self.misunderstood(format!("{other:?} as a port's priorities"))),
        }
    }

    /// Changes them.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn set_qos(&mut self, card: u32, qos: Qos) -> Result<(), ClientError> {
        match self.ask(&Request::SetQos { card, qos })? {
            (Response::Done, _) => Ok(()),
            (other, _) => Err(self.misunderstood(format!("{other:?} as priorities set"))),
        }
    }

    /// Attaches services to queue pairs of a card, or has them follow those that are attached there.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn attach_services(
        &mut self,
        card: u32,
        to: ServiceUsers,
        chain: ServiceChain,
        replaces: bool,
    ) -> Result<(), ClientError> {
        match self.ask(&Request::AttachServices { card, to, chain, replaces })? {
            (Response::Done, _) => Ok(()),
            (other, _) => Err(self.misunderstood(format!("{other:?} as services attached"))),
        }
    }

    /// Loads the module of a user's service into a card, and gives the name of the service.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn load_service(&mut self, card: u32, module: Vec<u8>) -> Result<String, ClientError> {
        match self.ask(&Request::LoadService { card, module })? {
            (Response::ServiceLoaded { name }, _) => Ok(name),
            (other, _) => Err(self.misunderstood(format!("{other:?} as a service loaded"))),
        }
    }

    /// Unloads it.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn unload_service(
        &mut self,
        card: u32,
        name: String,
        now: bool,
    ) -> Result<(), ClientError> {
        match self.ask(&Request::UnloadService { card, name, now })? {
            (Response::Done, _) => Ok(()),
            (other, _) => Err(self.misunderstood(format!("{other:?} as a service unloaded"))),
        }
    }

    /// Detaches them; how many queue pairs keep them to the end of a message.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn detach_services(
        &mut self,
        card: u32,
        from: ServiceUsers,
        now: bool,
    ) -> Result<u32, ClientError> {
        match self.ask(&Request::DetachServices { card, from, now })? {
            (Response::ServicesDetached { keeping }, _) => Ok(keeping),
            (other, _) => Err(self.misunderstood(format!("{other:?} as services detached"))),
        }
    }

    /// Begins a capture by a [`Request::Capture`]; where it comes.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn capture(&mut self, request: &Request) -> Result<UnixStream, ClientError> {
        match self.ask(request)? {
            (Response::Capture, mut fds) if fds.len() == 1 => {
                let socket = fds.pop().map(UnixStream::from);
                socket.ok_or_else(|| self.misunderstood("a capture without a socket".to_owned()))
            }
            (other, _) => Err(self.misunderstood(format!("{other:?} as a capture"))),
        }
    }

    /// Ends the capture of a card.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn end_capture(&mut self, card: u32) -> Result<(), ClientError> {
        match self.ask(&Request::EndCapture { card })? {
            (Response::Done, _) => Ok(()),
            (other, _) => Err(self.misunderstood(format!("{other:?} as the end of a capture"))),
        }
    }

    /// Brings an image for a card, to which nothing happens by that.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn bring_image(
        &mut self,
        card: u32,
        name: &str,
        sha256: [u8; 32],
        bytes: &[u8],
        manifest: &str,
    ) -> Result<(), ClientError> {
        let (length, name) = (bytes.len() as u64, name.chars().take(MAX_NAME).collect());
        let manifest = manifest.to_owned();
        self.done(&Request::FlashOpen { card, length, sha256, name, manifest })?;
        for piece in bytes.chunks(PIECE) {
            self.done(&Request::FlashWrite { bytes: piece.to_vec() })?;
        }
        Ok(())
    }

    /// Loads the uploaded image. The answer comes once balboad has looked at all of it, however long that takes; so do
    /// those of [`Self::roll_back`] and [`Self::verify_image`].
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn flash(&mut self, force: bool) -> Result<(), ClientError> {
        self.done_by_and_by(&Request::FlashApply { force })
    }

    /// Loads the image that a card had before.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn roll_back(&mut self, card: u32, force: bool) -> Result<(), ClientError> {
        self.done_by_and_by(&Request::FlashRollback { card, force })
    }

    /// Asks balboad to check a card against its record.
    ///
    /// # Errors
    /// When it is not, or balboad is silent, or answers something else.
    pub fn verify_image(&mut self, card: u32) -> Result<(), ClientError> {
        self.done_by_and_by(&Request::FlashVerify { card })
    }

    /// The progress of a card's image.
    ///
    /// # Errors
    /// When balboad refuses, is silent, or answers something else.
    pub fn flash_state(&mut self, card: u32) -> Result<FlashState, ClientError> {
        match self.ask(&Request::FlashState { card })? {
            (Response::Flash(state), _) => Ok(state),
            (other, _) => Err(self.misunderstood(format!("{other:?} as the state of an image"))),
        }
    }

    fn done(&mut self, request: &Request) -> Result<(), ClientError> {
        let answer = self.ask(request)?;
        self.is_done(&answer)
    }

    /// Makes a request that takes as long as an image and its disk do. balboad serves and greets others meanwhile: as
    /// long as it does, it has not forgotten this one.
    fn done_by_and_by(&mut self, request: &Request) -> Result<(), ClientError> {
        let mut answer = self.balboad.ask(request);
        while matches!(answer, Err(Error::Silent)) {
            Self::try_connect(&self.dir)?;
            answer = self.balboad.wait_on();
        }
        let answer = answer.map_err(|error| self.failed(error))?;
        self.is_done(&answer)
    }

    fn is_done(&self, (response, _): &(Response, Vec<OwnedFd>)) -> Result<(), ClientError> {
        match response {
            Response::Done => Ok(()),
            other => Err(self.misunderstood(format!("{other:?} as the end of a request"))),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<(Response, Vec<OwnedFd>), ClientError> {
        self.balboad.ask(request).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: Error) -> ClientError {
        let silent = |why| ClientError::Silent { dir: self.dir.clone(), why };
        match error {
            Error::Silent => silent(format!("within {ANSWER_SECONDS} s")),
            Error::Gone => silent("it closed the connection".to_owned()),
            Error::Host(why) => silent(why.to_string()),
            Error::Decode(why) => self.misunderstood(why.to_string()),
            Error::Greeting(other) => {
                self.misunderstood(format!("{other:?} as the answer to the hello"))
            }
            Error::Refused(Refusal { errno, reason }) => ClientError::Refused { errno, reason },
        }
    }

    fn misunderstood(&self, why: String) -> ClientError {
        ClientError::Misunderstood { dir: self.dir.clone(), why }
    }
}

/// Refuses a path that is no state directory.
fn check_dir(dir: &Path) -> Result<(), ClientError> {
    let metadata = match dir.metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(ClientError::NoBalboad { dir: dir.to_owned() });
        }
        Err(errno) => {
            return Err(ClientError::Connect { what: "look at", path: dir.to_owned(), errno });
        }
    };
    let own = geteuid().as_raw();
    if !metadata.is_dir() {
        Err(ClientError::NotADirectory(dir.to_owned()))
    } else if metadata.uid() != own {
        Err(ClientError::SomeoneElses { dir: dir.to_owned(), owner: metadata.uid(), own })
    } else if metadata.mode() & 0o022 != 0 {
        Err(ClientError::Open { dir: dir.to_owned(), mode: metadata.mode() & 0o777 })
    } else {
        Ok(())
    }
}

/// Whether the data of a card can be shown as the kernel would: its name and texts become those of files.
fn is_sound(card: &CardInfo) -> bool {
    let lines = [&card.firmware, &card.board];
    card.name == format!("balboa{}", card.card)
        && lines.iter().all(|text| !text.chars().any(char::is_control))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener;

    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
    };
    use shim_abi::{PortInfo, Reply};

    use super::*;

    /// A card, for tests that change one part of it.
    pub(crate) fn card(number: u32) -> CardInfo {
        CardInfo {
            card: number,
            name: format!("balboa{number}"),
            node_guid: 0x0250_c2ff_fe00_0001,
            firmware: "1.2.3".into(),
            board: "soft".into(),
            port: PortInfo {
                link_up: true,
                max_mtu: 5,
                active_mtu: 5,
                mac: [2, 0, 0, 0, 0, 1],
                gids: Vec::new(),
                vlans: Vec::new(),
                pkeys: vec![0xffff],
            },
        }
    }

    #[test]
    fn a_card_is_believed_whose_name_cannot_lead_elsewhere() {
        let card = |name: &str, board: &str| {
            let (name, board) = (name.into(), board.into());
            CardInfo { name, board, ..card(1) }
        };
        assert!(is_sound(&card("balboa1", "a board")));
        for (name, board) in [("balboa2", ""), ("../../etc", ""), ("", ""), ("balboa1", "a\nb")] {
            assert!(!is_sound(&card(name, board)), "{name:?} {board:?}");
        }
    }

    /// A directory with a listener that has accepted no connection yet.
    pub(crate) fn listening() -> (tempfile::TempDir, UnixListener) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let flags = SockFlag::SOCK_CLOEXEC;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        let address = UnixAddr::new(&dir.path().join(SOCKET_NAME)).unwrap();
        bind(listener.as_raw_fd(), &address).unwrap();
        listen(&listener, Backlog::new(2).unwrap()).unwrap();
        // A socket of SOCK_SEQPACKET; std's type takes any.
        (dir, UnixListener::from(listener))
    }

    /// The next client that connects, greeted.
    pub(crate) fn greeted(listener: &UnixListener) -> UnixStream {
        let (mut it, _) = listener.accept().unwrap();
        greet(&mut it);
        it
    }

    /// Takes a hello, and answers it.
    pub(crate) fn greet(it: &mut UnixStream) {
        assert!(it.read(&mut vec![0; shim_abi::MAX_MESSAGE]).unwrap() > 0);
        it.write_all(&shim_abi::hello_frame(&Reply::Ok(Response::Done))).unwrap();
    }

    /// A balboad that takes longer for an answer than is waited for one, and serves others meanwhile, or does not.
    #[test]
    fn an_image_is_waited_for_as_long_as_balboad_serves_others() {
        for serves_others in [true, false] {
            let (dir, listener) = listening();
            let balboad = std::thread::spawn(move || {
                let mut room = vec![0; shim_abi::MAX_MESSAGE];
                let mut tool = greeted(&listener);
                let asked = tool.read(&mut room).unwrap();
                let request = shim_abi::decode(&room[..asked]);
                assert_eq!(request, Ok(Request::FlashApply { force: false }));
                if !serves_others {
                    drop(listener.accept().unwrap());
                    return;
                }
                // It comes because there is no answer yet, and goes.
                assert_eq!(greeted(&listener).read(&mut room).unwrap(), 0);
                tool.write_all(&shim_abi::encode(&Reply::Ok(Response::Done))).unwrap();
            });
            let mut connection = shim_client::Client::connect(dir.path(), 1).unwrap();
            connection.greet("test".into(), Role::Tool).unwrap();
            let mut client = ToolClient { dir: dir.path().to_owned(), balboad: connection };
            match client.flash(false) {
                Ok(()) => assert!(serves_others),
                Err(error) => {
                    assert!(matches!(error, ClientError::Silent { .. }) && !serves_others)
                }
            }
            balboad.join().unwrap();
        }
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        for (bits, refused) in [(0o700, false), (0o755, false), (0o775, true), (0o1777, true)] {
            std::fs::set_permissions(dir.path(), mode(bits)).unwrap();
            let open = matches!(check_dir(dir.path()), Err(ClientError::Open { .. }));
            assert_eq!(open, refused, "{bits:o}");
        }
    }
}
