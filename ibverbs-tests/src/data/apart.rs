//! Both sides of a connection in a process of their own, so that the devices need not be of one
//! machine, or of one maker.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::link::{ACCESS, Options, Side, success};
use super::transfer::{self, Transfer};
use super::{MTUS, PIECES};
use crate::ffi::{Library, Operation, Peer};

/// How long the other process may keep us waiting.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of a message that is longer than every path MTU.
const LONG: usize = 20_011;
/// First PSNs of the side that waited and of the one that connected. They wrap around after the
/// first few packets.
const PSNS: [u32; 2] = [0xff_fffa, 0xff_fff0];

/// Who sends, writes and reads: the side that waited or the one that connected.
type Role = usize;

/// One side of a connection, and the other one as far as it is known.
struct Half<'a> {
    side: &'a Side,
    line: &'a mut BufReader<TcpStream>,
    role: Role,
    far: Far,
    /// READs of nothing name no key.
    keyless: bool,
}

/// What the other side tells of itself.
struct Far {
    qpn: u32,
    gid: [u8; 16],
    region: (u64, u32),
}

/// Waits on a TCP port, or connects to it, and moves messages of every kind both ways at every path
/// MTU, READs of nothing without a key if `keyless`; answers how many.
///
/// Each path MTU has QPs of its own. A QP of rdma_rxe cannot be connected again: RESET leaves it the READ
/// that it was answering (`qp->resp.res`), which may be a repetition that nobody waits for any more,
/// and the first request of its next life is taken for that READ and refused for its key.
///
/// # Errors
/// At the first that goes wrong.
pub fn run(options: &Options, host: Option<&str>, port: u16, keyless: bool) -> Result<usize> {
    let library = Library::open()?;
    let mut side = Side::new(library, options, 0, transfer::room(LONG))?;
    let (role, stream) = match host {
        None => (0, TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?.accept()?.0),
        Some(host) => (1, TcpStream::connect((host, port))?),
    };
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_nodelay(true)?;
    let mut line = BufReader::new(stream);
    let mut count = 0;
    for mtu in MTUS {
        side.renew_qp()?;
        let far = Far::exchange(&side, &mut line, options)?;
        let mut half = Half { side: &side, line: &mut line, role, far, keyless };
        half.connect(options, mtu).with_context(|| format!("at ibv_mtu {mtu}"))?;
        for transfer in transfers(128 << mtu) {
            for sender in [0, 1] {
                half.run(&transfer, sender).with_context(|| {
                    let from = if sender == role { "to" } else { "from" };
                    format!("{transfer:?} {from} the other side at ibv_mtu {mtu}")
                })?;
                count += 1;
            }
        }
    }
    Ok(count)
}

/// Every operation with sizes around the path MTU, given in bytes.
fn transfers(mtu: usize) -> impl Iterator<Item = Transfer> {
    let sizes = [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu + 3, LONG];
    let all = Operation::ALL
        .into_iter()
        .flat_map(move |operation| sizes.into_iter().map(move |size| (operation, size)));
    all.enumerate().map(move |(turn, (operation, size))| Transfer {
        operation,
        size,
        gather: PIECES[turn % PIECES.len()],
        scatter: PIECES[(turn / 2 + 1) % PIECES.len()],
        offset: turn % 7,
        inline: size < 64 && operation != Operation::Read && turn % 2 == 0,
        seed: (mtu + turn) as u64,
    })
}

impl Far {
    /// Tells the other side what there is here, and hears what there is there.
    fn exchange(side: &Side, line: &mut BufReader<TcpStream>, options: &Options) -> Result<Self> {
        let gid = u128::from_be_bytes(side.context.gid(options.gid_index)?);
        let (address, key) = (side.region.address(), side.region.rkey());
        writeln!(line.get_mut(), "{} {gid} {address} {key}", side.qp.number())?;
        let mut text = String::new();
        line.read_line(&mut text)?;
        let mut words = text.split_whitespace();
        let mut next = || words.next().with_context(|| format!("the other side says {text:?}"));
        let (qpn, gid) = (next()?.parse()?, next()?.parse::<u128>()?.to_be_bytes());
        Ok(Self { qpn, gid, region: (next()?.parse()?, next()?.parse()?) })
    }
}

impl Half<'_> {
    /// Waits until the other side has come as far.
    fn meet(&mut self) -> Result<()> {
        self.line.get_mut().write_all(b"here\n")?;
        let mut text = String::new();
        self.line.read_line(&mut text).context("the other side keeps us waiting")?;
        ensure!(text == "here\n", "the other side has gone");
        Ok(())
    }

    fn connect(&mut self, options: &Options, mtu: u32) -> Result<()> {
        let peer = Peer {
            qpn: self.far.qpn,
            gid: self.far.gid,
            gid_index: options.gid_index,
            send_psn: PSNS[self.role],
            receive_psn: PSNS[1 - self.role],
            mtu,
        };
        let qp = &self.side.qp;
        qp.init(ACCESS)?;
        qp.receive_from(&peer)?;
        qp.send_to(&peer, options.patience)?;
        self.meet()
    }

    /// One message, of which this side sees its half.
    fn run(&mut self, transfer: &Transfer, sender: Role) -> Result<()> {
        let (near, end) = (sender == self.role, transfer.end());
        let region = &self.side.region;
        transfer::fill_guard(region, end);
        match transfer.reads() {
            true if !near => transfer::fill(region, &transfer.far(), transfer.seed),
            false if near => transfer::fill(region, &transfer.near(), transfer.seed),
            _ => {}
        }
        let receives = transfer.operation.receives() && !near;
        if receives {
            self.side.qp.post_recv(&transfer.receive(region, 5))?;
        }
        self.meet()?;
        let (side, library) = (self.side, self.side.context.library());
        if near {
            let (address, key) = self.far.region;
            let needs_none = self.keyless && transfer.reads() && transfer.size == 0;
            let far = (address, if needs_none { 0 } else { key });
            let request = transfer.send(&side.region, far, 6, true);
            side.qp.post_send(&[request]).map_err(|(failed, _)| failed)?;
            transfer.check_sent(side, 6, &success(library, &side.send_cq)?)?;
        }
        if receives {
            transfer.check_received(side, 5, &success(library, &side.receive_cq)?)?;
        }
        self.meet()?;
        if near == transfer.reads() {
            transfer::check_bytes(&self.side.region, &[*transfer], end)?;
        }
        Ok(())
    }
}
