// See vfpga.h. VFPGA_HEADER and VFPGA_TOP are the class that Verilator made of a top module.
#include "vfpga.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "verilated.h"
#include VFPGA_HEADER

namespace {
struct Logic {
  VerilatedContext context;
  std::unique_ptr<VFPGA_TOP> top;
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
  logic->top = std::make_unique<VFPGA_TOP>(&logic->context);
  logic->top->clk = 0;
  return logic;
}

void vfpga_delete(void *logic) { delete static_cast<Logic *>(logic); }

void vfpga_settle(void *handle, const vfpga_in *in, vfpga_out *out) {
  VFPGA_TOP &top = *static_cast<Logic *>(handle)->top;
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
  logic.context.timeInc(2);
  logic.top->clk = 0;
}
