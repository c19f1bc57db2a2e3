package main

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The calls of the service. Its messages are types that protobuf brings along, so
// that nobody needs protoc. A program with messages of its own has this file
// generated.
const (
	serviceName = "kcp.example.Demo"
	whoAmI      = "/" + serviceName + "/WhoAmI"
	count       = "/" + serviceName + "/Count"
)

// demo is what a server of the service does.
type demo interface {
	// WhoAmI returns the name in the caller's certificate.
	WhoAmI(ctx context.Context, _ *emptypb.Empty) (*wrapperspb.StringValue, error)
	// Count sends the numbers from 1 to last, and without end if that is 0.
	Count(last *wrapperspb.UInt64Value, stream grpc.ServerStreamingServer[wrapperspb.UInt64Value]) error
}

// description is what protoc would have made of the service.
var description = grpc.ServiceDesc{
	ServiceName: serviceName,
	HandlerType: (*demo)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "WhoAmI", Handler: func(
		s any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor,
	) (any, error) {
		in := new(emptypb.Empty)
		if err := decode(in); err != nil {
			return nil, err
		}
		if intercept == nil {
			return s.(demo).WhoAmI(ctx, in)
		}
		info := &grpc.UnaryServerInfo{Server: s, FullMethod: whoAmI}
		return intercept(ctx, in, info, func(ctx context.Context, in any) (any, error) {
			return s.(demo).WhoAmI(ctx, in.(*emptypb.Empty))
		})
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "Count", ServerStreams: true, Handler: func(s any, stream grpc.ServerStream) error {
		in := new(wrapperspb.UInt64Value)
		if err := stream.RecvMsg(in); err != nil {
			return err
		}
		return s.(demo).Count(in, &grpc.GenericServerStream[wrapperspb.UInt64Value, wrapperspb.UInt64Value]{ServerStream: stream})
	}}},
}

// demoServer implements the service.
type demoServer struct{}

func (demoServer) WhoAmI(ctx context.Context, _ *emptypb.Empty) (*wrapperspb.StringValue, error) {
	p, _ := peer.FromContext(ctx)
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return nil, status.Error(codes.Unauthenticated, "a client without a certificate")
	}
	return wrapperspb.String(info.State.PeerCertificates[0].Subject.CommonName), nil
}

// Count ends when the client cancels the call, or its deadline passes: Send fails.
func (demoServer) Count(last *wrapperspb.UInt64Value, stream grpc.ServerStreamingServer[wrapperspb.UInt64Value]) error {
	for i := uint64(1); last.Value == 0 || i <= last.Value; i++ {
		if err := stream.Send(wrapperspb.UInt64(i)); err != nil {
			return err
		}
	}
	return nil
}

// client makes the calls.
type client struct{ conn grpc.ClientConnInterface }

// WhoAmI returns the name by which the server knows the caller.
func (c client) WhoAmI(ctx context.Context, options ...grpc.CallOption) (string, error) {
	name := new(wrapperspb.StringValue)
	err := c.conn.Invoke(ctx, whoAmI, new(emptypb.Empty), name, options...)
	return name.Value, err
}

// Count begins a call of Count. Its context must end, or Recv be called until it
// fails.
func (c client) Count(ctx context.Context, last uint64) (grpc.ServerStreamingClient[wrapperspb.UInt64Value], error) {
	stream, err := c.conn.NewStream(ctx, &description.Streams[0], count)
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(wrapperspb.UInt64(last)); err != nil {
		return nil, err
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	return &grpc.GenericClientStream[wrapperspb.UInt64Value, wrapperspb.UInt64Value]{ClientStream: stream}, nil
}
