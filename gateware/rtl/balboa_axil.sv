// `axi_ctrl` of the shell, an AXI4-Lite of 64 bits, as writes of registers one by one and reads that are answered in the
// next cycle.
module balboa_axil
  import balboa_host_pkg::*;
(
    input  logic                   clk,
    input  logic                   rst_n,
    input  logic                   awvalid,
    output logic                   awready,
    input  logic            [15:0] awaddr,
    input  logic                   wvalid,
    output logic                   wready,
    input  logic            [63:0] wdata,
    input  logic            [ 7:0] wstrb,
    output logic                   bvalid,
    input  logic                   bready,
    input  logic                   arvalid,
    output logic                   arready,
    input  logic            [15:0] araddr,
    output logic                   rvalid,
    input  logic                   rready,
    output logic            [63:0] rdata,
    // A register is written in this cycle.
    output logic                   write_valid,
    output register_write_t        write,
    // There is room for one.
    input  logic                   write_ready,
    // The register to read, and what stands in it in the same cycle.
    output logic            [15:0] read_address,
    input  logic            [63:0] read_data
);
  // Address and data are taken together, while no answer waits.
  assign awready      = awvalid && wvalid && (!bvalid || bready) && write_ready;
  assign wready       = awready;
  assign write_valid  = awready;
  assign write        = '{strobe: wstrb, data: wdata, address: awaddr};

  assign arready      = !rvalid || rready;
  assign read_address = araddr;

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      bvalid <= 1'b0;
      rvalid <= 1'b0;
    end else begin
      if (awready) bvalid <= 1'b1;
      else if (bready) bvalid <= 1'b0;
      if (arvalid && arready) rvalid <= 1'b1;
      else if (rready) rvalid <= 1'b0;
    end
  end

  always_ff @(posedge clk) begin
    if (arvalid && arready) rdata <= read_data;
  end
endmodule
