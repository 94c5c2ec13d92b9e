//! Cards and their hosts in virtual time, driven post by post and frame by frame.

#![allow(missing_docs, reason = "tests")]

mod builds;
mod counters;
mod loss;
mod posts;
mod reception;
mod rig;
mod storm;
mod wire;
