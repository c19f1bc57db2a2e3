# An image with nothing but the program. `make release` comes first:
#
#	docker build -t kcp .
#	docker run --rm -p 4000:4000/udp kcp relay -listen :4000 -to example.com:9000 -loss 5%
#
# It has no certificates of authorities. For `kcp dial -tls` mount some, as with
# -v /etc/ssl/certs:/etc/ssl/certs:ro, or give -ca.
FROM scratch
ARG TARGETARCH=amd64
COPY LICENSE /LICENSE
COPY dist/kcp-linux-${TARGETARCH} /kcp
USER 65534:65534
ENTRYPOINT ["/kcp"]
