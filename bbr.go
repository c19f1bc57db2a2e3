package kcp
