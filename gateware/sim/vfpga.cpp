// See vfpga.h. VFPGA_HEADER and VFPGA_TOP are the class that Verilator made of a top module.
#include "vfpga.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "verilated.h"
#include VFPGA_HEADER
#ifdef VFPGA_PORT_N
#include "Vengine_top___024root.h"
#endif
#if VM_TRACE_FST
#include <string>

#include "verilated_fst_c.h"
#endif

namespace {
struct Logic {
  VerilatedContext context;
  std::unique_ptr<VFPGA_TOP> top;
#if VM_TRACE_FST
  std::unique_ptr<VerilatedFstC> waves;
#endif

  // Writes all wires as they are at the time, which has two steps a cycle.
  void record(unsigned step) {
#if VM_TRACE_FST
    if (waves) waves->dump(context.time() + step);
#endif
    (void)step;
  }
};
}  // namespace

// Where an assertion of the RTL does not hold, or it calls $stop: the process ends, for nothing that follows counts.
void vl_stop(const char *file, int line, const char *, const char *message) VL_MT_UNSAFE {
  fprintf(stderr, "the RTL stops at %s:%d: %s\n", file, line, message ? message : "");
  abort();
}

uint32_t vfpga_abi(void) { return VFPGA_ABI; }

void *vfpga_new(uint64_t seed) {
  Logic *logic = new (std::nothrow) Logic;
  if (!logic) return nullptr;
  logic->context.randReset(2);
  logic->context.randSeed(static_cast<int>(seed & 0x7fffffff));
  logic->context.assertOn(true);
#if VM_TRACE_FST
  logic->context.traceEverOn(true);
#endif
  logic->top = std::make_unique<VFPGA_TOP>(&logic->context);
  logic->top->clk = 0;
#if VM_TRACE_FST
  // A file of each piece of logic, in the directory that the environment names.
  static unsigned count = 0;
  if (const char *directory = std::getenv("BALBOA_WAVES")) {
    logic->waves = std::make_unique<VerilatedFstC>();
    logic->top->trace(logic->waves.get(), 99);
    logic->waves->open((std::string(directory) + "/" + std::to_string(count++) + ".fst").c_str());
  }
#endif
  return logic;
}

void vfpga_delete(void *handle) {
  Logic *logic = static_cast<Logic *>(handle);
#if VM_TRACE_FST
  if (logic->waves) logic->waves->close();
#endif
  delete logic;
}

void vfpga_settle(void *handle, const vfpga_in *in, vfpga_out *out) {
  Logic &logic = *static_cast<Logic *>(handle);
  VFPGA_TOP &top = *logic.top;
  top.rst_n = in->rst_n;
  top.awvalid = in->awvalid;
  top.awaddr = in->awaddr;
  top.wvalid = in->wvalid;
  top.wdata = in->wdata;
  top.wstrb = in->wstrb;
  top.bready = in->bready;
  top.arvalid = in->arvalid;
  top.araddr = in->araddr;
  top.rready = in->rready;
  top.sq_rd_ready = in->sq_rd_ready;
  top.sq_wr_ready = in->sq_wr_ready;
  top.cq_rd_valid = in->cq_rd_valid;
  top.cq_rd_stream = in->cq_rd_stream;
  top.cq_wr_valid = in->cq_wr_valid;
  top.cq_wr_stream = in->cq_wr_stream;
  top.recv_valid = in->recv_valid;
  top.recv_last = in->recv_last;
  top.recv_keep = in->recv_keep;
  std::memcpy(top.recv_data.data(), in->recv_data, sizeof in->recv_data);
  top.send_ready = in->send_ready;
  top.notify_ready = in->notify_ready;
  top.eval();
  logic.record(0);
  out->awready = top.awready;
  out->wready = top.wready;
  out->bvalid = top.bvalid;
  out->arready = top.arready;
  out->rvalid = top.rvalid;
  out->rdata = top.rdata;
  out->sq_rd_valid = top.sq_rd_valid;
  out->sq_rd_address = top.sq_rd_address;
  out->sq_rd_length = top.sq_rd_length;
  out->sq_rd_stream = top.sq_rd_stream;
  out->sq_wr_valid = top.sq_wr_valid;
  out->sq_wr_address = top.sq_wr_address;
  out->sq_wr_length = top.sq_wr_length;
  out->sq_wr_stream = top.sq_wr_stream;
  out->recv_ready = top.recv_ready;
  out->send_valid = top.send_valid;
  out->send_last = top.send_last;
  out->send_keep = top.send_keep;
  std::memcpy(out->send_data, top.send_data.data(), sizeof out->send_data);
  out->notify_valid = top.notify_valid;
  out->notify = top.notify;
}

void vfpga_clock(void *handle) {
  Logic &logic = *static_cast<Logic *>(handle);
  logic.top->clk = 1;
  logic.top->eval();
  logic.record(1);
  logic.context.timeInc(2);
  logic.top->clk = 0;
}

#ifdef VFPGA_PORT_N
void vfpga_port_drive(void *handle, const vfpga_port_in *in) {
  VFPGA_TOP &top = *static_cast<Logic *>(handle)->top;
  top.command_ready = in->command_ready;
  top.command_done_valid = in->command_done_valid;
  std::memcpy(top.command_done_bits.data(), in->command_done, sizeof in->command_done);
  top.submit_ready = in->submit_ready;
  top.room_valid = in->room_valid;
  std::memcpy(top.room_bits.data(), in->room, sizeof in->room);
  top.check_valid = in->check_valid;
  std::memcpy(top.check_bits.data(), in->check, sizeof in->check);
  top.checked_ready = in->checked_ready;
  top.claim_valid = in->claim_valid;
  std::memcpy(top.claim_bits.data(), in->claim, sizeof in->claim);
  top.claimed_ready = in->claimed_ready;
  top.fetch_valid = in->fetch_valid;
  std::memcpy(top.fetch_bits.data(), in->fetch, sizeof in->fetch);
  top.fetched_ready = in->fetched_ready;
  top.fetched_beat_ready = in->fetched_beat_ready;
  top.place_valid = in->place_valid;
  std::memcpy(top.place_bits.data(), in->place, sizeof in->place);
  top.place_beat_valid = in->place_beat_valid;
  std::memcpy(top.place_beat_bits.data(), in->place_beat, sizeof in->place_beat);
  top.placed_ready = in->placed_ready;
  top.report_valid = in->report_valid;
  std::memcpy(top.report_bits.data(), in->report, sizeof in->report);
  top.transport_quiet = in->transport_quiet;
}

void vfpga_port_read(void *handle, vfpga_port_out *out) {
  VFPGA_TOP &top = *static_cast<Logic *>(handle)->top;
  out->command_valid = top.command_valid;
  std::memcpy(out->command, top.command_bits.data(), sizeof out->command);
  out->command_done_ready = top.command_done_ready;
  out->submit_valid = top.submit_valid;
  std::memcpy(out->submit, top.submit_bits.data(), sizeof out->submit);
  out->room_ready = top.room_ready;
  out->check_ready = top.check_ready;
  out->checked_valid = top.checked_valid;
  std::memcpy(out->checked, top.checked_bits.data(), sizeof out->checked);
  out->claim_ready = top.claim_ready;
  out->claimed_valid = top.claimed_valid;
  std::memcpy(out->claimed, top.claimed_bits.data(), sizeof out->claimed);
  out->fetch_ready = top.fetch_ready;
  out->fetched_valid = top.fetched_valid;
  std::memcpy(out->fetched, top.fetched_bits.data(), sizeof out->fetched);
  out->fetched_beat_valid = top.fetched_beat_valid;
  std::memcpy(out->fetched_beat, top.fetched_beat_bits.data(), sizeof out->fetched_beat);
  out->place_ready = top.place_ready;
  out->place_beat_ready = top.place_beat_ready;
  out->placed_valid = top.placed_valid;
  std::memcpy(out->placed, top.placed_bits.data(), sizeof out->placed);
  out->report_ready = top.report_ready;
  out->stop = top.stop;
  out->engine_quiet = top.engine_quiet;
}

void vfpga_flip(void *handle, uint32_t table, uint32_t bit) {
  auto &root = *static_cast<Logic *>(handle)->top->rootp;
  auto flip = [bit](auto &records) {
    for (size_t place = 0; place < records.size(); ++place) records[place][bit / 32] ^= 1u << bit % 32;
  };
  switch (table) {
    case 0: return flip(root.engine_top__DOT__engine__DOT__keys__DOT__keys__DOT__ram__DOT__places);
    case 1: return flip(root.engine_top__DOT__engine__DOT__queues__DOT__qps_found__DOT__ram__DOT__places);
    case 2: return flip(root.engine_top__DOT__engine__DOT__queues__DOT__qps_read__DOT__ram__DOT__places);
    case 3: return flip(root.engine_top__DOT__engine__DOT__queues__DOT__cqs__DOT__ram__DOT__places);
    case 4: return flip(root.engine_top__DOT__engine__DOT__queues__DOT__rqs__DOT__ram__DOT__places);
    case 5: return flip(root.engine_top__DOT__engine__DOT__sender__DOT__messages_asked__DOT__ram__DOT__places);
    case 6: return flip(root.engine_top__DOT__engine__DOT__sender__DOT__messages_ended__DOT__ram__DOT__places);
    case 7: return flip(root.engine_top__DOT__engine__DOT__sender__DOT__elements__DOT__ram__DOT__places);
    case 8: return flip(root.engine_top__DOT__engine__DOT__receiver__DOT__receives_asked__DOT__ram__DOT__places);
    case 9: return flip(root.engine_top__DOT__engine__DOT__receiver__DOT__receives_ended__DOT__ram__DOT__places);
    case 11: return flip(root.engine_top__DOT__engine__DOT__sender__DOT__queues__DOT__places__DOT__ram__DOT__places);
    case 12: return flip(root.engine_top__DOT__engine__DOT__sender__DOT__numbers__DOT__ram__DOT__places);
    case 13: return flip(root.engine_top__DOT__engine__DOT__sender__DOT__rooms__DOT__ram__DOT__places);
    case 14: return flip(root.engine_top__DOT__engine__DOT__sender__DOT__rooms_given__DOT__ram__DOT__places);
    case 15: return flip(root.engine_top__DOT__engine__DOT__receiver__DOT__queues__DOT__places__DOT__ram__DOT__places);
    case 16: return flip(root.engine_top__DOT__engine__DOT__receiver__DOT__numbers_found__DOT__ram__DOT__places);
    case 17: return flip(root.engine_top__DOT__engine__DOT__receiver__DOT__numbers_read__DOT__ram__DOT__places);
    case 18: return flip(root.engine_top__DOT__engine__DOT__completions__DOT__queues__DOT__places__DOT__ram__DOT__places);
    case 19: return flip(root.engine_top__DOT__engine__DOT__queues__DOT__qps_room__DOT__ram__DOT__places);
    case 10: return flip(root.engine_top__DOT__engine__DOT__receiver__DOT__elements__DOT__ram__DOT__places);
    case 20: return flip(root.engine_top__DOT__engine__DOT__queues__DOT__cq_users__DOT__counts__DOT__ram__DOT__places);
    case 21: return flip(root.engine_top__DOT__engine__DOT__queues__DOT__rq_users__DOT__counts__DOT__ram__DOT__places);
  }
}
#endif
