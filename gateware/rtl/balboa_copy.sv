// The trivial master: logic that copies host memory, as fast as the shell's ports allow. What it reaches is what a
// queue engine could.
//
// Registers, 64 bits each:
//   0x00  the first byte to read
//   0x08  the first byte to write
//   0x10  bytes of each request, 1 to 4096
//   0x18  requests; writing it starts
//   0x20  reads: requests that were written so far
//   0x28  reads: cycles since the start, until the last one was written
module balboa_copy
  import balboa_host_pkg::*;
(
    input  logic                   clk,
    input  logic                   rst_n,
    input  logic                   write_valid,
    input  register_write_t        write,
    input  logic            [15:0] read_address,
    output logic            [63:0] read_data,
    output logic                   sq_rd_valid,
    input  logic                   sq_rd_ready,
    output host_request_t          sq_rd,
    output logic                   sq_wr_valid,
    input  logic                   sq_wr_ready,
    output host_request_t          sq_wr,
    input  logic                   cq_wr_valid,
    input  logic                   recv_valid,
    output logic                   recv_ready,
    input  host_beat_t             recv,
    output logic                   send_valid,
    input  logic                   send_ready,
    output host_beat_t             send,
    output logic                   notify_valid,
    input  logic                   notify_ready,
    output logic            [31:0] notify
);
  localparam logic [15:0] SOURCE = 16'h00;
  localparam logic [15:0] DESTINATION = 16'h08;
  localparam logic [15:0] LENGTH = 16'h10;
  localparam logic [15:0] COUNT = 16'h18;
  localparam logic [15:0] DONE = 16'h20;
  localparam logic [15:0] CYCLES = 16'h28;

  logic [47:0] source;
  logic [47:0] destination;
  logic [12:0] length;
  logic [31:0] to_read;
  logic [31:0] to_write;
  logic [31:0] to_end;
  logic [31:0] done;
  logic [63:0] cycles;
  logic        is_written;

  assign is_written  = write_valid && write.strobe == '1;

  assign sq_rd_valid = to_read != '0;
  assign sq_rd       = '{stream: '0, length: 28'(length), address: source};
  assign sq_wr_valid = to_write != '0;
  assign sq_wr       = '{stream: '0, length: 28'(length), address: destination};
  assign notify      = done;

  balboa_fifo #(
      .Width($bits(host_beat_t)),
      .Depth(4)
  ) beats (
      .clk,
      .rst_n,
      .in_valid (recv_valid),
      .in_ready (recv_ready),
      .in_data  (recv),
      .out_valid(send_valid),
      .out_ready(send_ready),
      .out_data (send)
  );

  always_comb begin
    case (read_address)
      SOURCE:      read_data = 64'(source);
      DESTINATION: read_data = 64'(destination);
      LENGTH:      read_data = 64'(length);
      DONE:        read_data = 64'(done);
      CYCLES:      read_data = cycles;
      default:     read_data = '0;
    endcase
  end

  always_ff @(posedge clk) begin
    if (!rst_n) begin
      source       <= '0;
      destination  <= '0;
      length       <= 13'd64;
      to_read      <= '0;
      to_write     <= '0;
      to_end       <= '0;
      done         <= '0;
      cycles       <= '0;
      notify_valid <= 1'b0;
    end else begin
      if (to_end != '0) cycles <= cycles + 64'd1;
      if (sq_rd_valid && sq_rd_ready) begin
        to_read <= to_read - 32'd1;
        source  <= source + 48'(length);
      end
      if (sq_wr_valid && sq_wr_ready) begin
        to_write    <= to_write - 32'd1;
        destination <= destination + 48'(length);
      end
      if (notify_ready) notify_valid <= 1'b0;
      if (cq_wr_valid && to_end != '0) begin
        to_end <= to_end - 32'd1;
        done   <= done + 32'd1;
        if (to_end == 32'd1) notify_valid <= 1'b1;
      end
      if (is_written && to_end == '0 && !notify_valid) begin
        case (write.address)
          SOURCE:      source <= write.data[47:0];
          DESTINATION: destination <= write.data[47:0];
          LENGTH:      length <= write.data[12:0];
          COUNT: begin
            to_read  <= write.data[31:0];
            to_write <= write.data[31:0];
            to_end   <= write.data[31:0];
            done     <= '0;
            cycles   <= '0;
          end
          default:     ;
        endcase
      end
    end
  end
endmodule
