// The logic of a vFPGA, compiled by Verilator, behind calls of C. gateware/cosim/src/ffi has the same records in Rust.
#pragma once
#include <stdint.h>

// Changes with any of the records and calls below.
#define VFPGA_ABI 7

// What the shell drives in a cycle.
struct vfpga_in {
  uint64_t wdata;
  uint64_t recv_keep;
  uint8_t recv_data[64];
  uint16_t awaddr;
  uint16_t araddr;
  uint8_t rst_n;
  uint8_t awvalid;
  uint8_t wvalid;
  uint8_t wstrb;
  uint8_t bready;
  uint8_t arvalid;
  uint8_t rready;
  uint8_t sq_rd_ready;
  uint8_t sq_wr_ready;
  uint8_t cq_rd_valid;
  uint8_t cq_rd_stream;
  uint8_t cq_wr_valid;
  uint8_t cq_wr_stream;
  uint8_t recv_valid;
  uint8_t recv_last;
  uint8_t send_ready;
  uint8_t notify_ready;
  uint8_t pad[3];
};

// What the logic drives in the same cycle.
struct vfpga_out {
  uint64_t rdata;
  uint64_t sq_rd_address;
  uint64_t sq_wr_address;
  uint64_t send_keep;
  uint8_t send_data[64];
  uint32_t sq_rd_length;
  uint32_t sq_wr_length;
  uint32_t notify;
  uint8_t awready;
  uint8_t wready;
  uint8_t bvalid;
  uint8_t arready;
  uint8_t rvalid;
  uint8_t sq_rd_valid;
  uint8_t sq_rd_stream;
  uint8_t sq_wr_valid;
  uint8_t sq_wr_stream;
  uint8_t recv_ready;
  uint8_t send_valid;
  uint8_t send_last;
  uint8_t notify_valid;
  uint8_t pad[7];
};

// What a transport drives at port N in a cycle. Records stand in them as gateware/rtl/balboa_port_pkg.sv has them, the lowest
// bit first.
struct vfpga_port_in {
  uint8_t command_done[136];
  uint8_t room[12];
  uint8_t check[24];
  uint8_t claim[12];
  uint8_t fetch[28];
  uint8_t place[28];
  uint8_t place_beat[68];
  uint8_t report[16];
  uint8_t command_ready;
  uint8_t command_done_valid;
  uint8_t submit_ready;
  uint8_t room_valid;
  uint8_t check_valid;
  uint8_t checked_ready;
  uint8_t claim_valid;
  uint8_t claimed_ready;
  uint8_t fetch_valid;
  uint8_t fetched_ready;
  uint8_t fetched_beat_ready;
  uint8_t place_valid;
  uint8_t place_beat_valid;
  uint8_t placed_ready;
  uint8_t report_valid;
  uint8_t transport_quiet;
};

// What the logic drives there in the same cycle.
struct vfpga_port_out {
  uint8_t command[144];
  uint8_t submit[28];
  uint8_t checked[12];
  uint8_t claimed[12];
  uint8_t fetched[12];
  uint8_t fetched_beat[68];
  uint8_t placed[12];
  uint8_t command_valid;
  uint8_t command_done_ready;
  uint8_t submit_valid;
  uint8_t room_ready;
  uint8_t check_ready;
  uint8_t checked_valid;
  uint8_t claim_ready;
  uint8_t claimed_valid;
  uint8_t fetch_ready;
  uint8_t fetched_valid;
  uint8_t fetched_beat_valid;
  uint8_t place_ready;
  uint8_t place_beat_ready;
  uint8_t placed_valid;
  uint8_t report_ready;
  uint8_t stop;
  uint8_t engine_quiet;
};

extern "C" {
uint32_t vfpga_abi(void);
// Logic with random contents of all registers and memories, as the seed decides. Null where there is no memory.
void *vfpga_new(uint64_t seed);
void vfpga_delete(void *logic);
// Settles all wires of a cycle: what the logic drives, as long as the shell drives that.
void vfpga_settle(void *logic, const vfpga_in *in, vfpga_out *out);
// Where the logic has port N: what the other side drives, before a cycle is settled, and what the logic drives, behind
// that.
void vfpga_port_drive(void *logic, const vfpga_port_in *in);
void vfpga_port_read(void *logic, vfpga_port_out *out);
// Where it has port N, it is a queue engine: flips a bit of all that is in a table, by the numbers of `cosim::ffi::Table`.
void vfpga_flip(void *logic, uint32_t table, uint32_t bit);
// Ends the cycle: the rising edge of the clock.
void vfpga_clock(void *logic);
}
