# Build: with the compiler. The image that runs has what Baton needs to run, no more.
FROM node:22-bookworm-slim AS build
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
RUN npm ci --ignore-scripts
COPY tsconfig.json tsconfig.build.json ./
COPY scripts ./scripts
COPY src ./src
COPY routes ./routes
COPY providers ./providers
COPY migrations ./migrations
RUN npm run -s build && npm prune --omit=dev --ignore-scripts

FROM node:22-bookworm-slim
ENV NODE_ENV=production BATON_HOST=0.0.0.0 BATON_PORT=8787 BATON_DATA_DIR=/data
# Eight names are looked up at a time, not two: one whose servers do not answer takes a place for half a minute.
ENV UV_THREADPOOL_SIZE=16
WORKDIR /app
# Also for a user that is not known beforehand, in group 0, as OpenShift has it.
RUN mkdir /data && chown node:0 /data && chmod 770 /data
COPY --from=build /app/package.json ./
COPY --from=build /app/scripts/current.sh ./scripts/
COPY --from=build /app/node_modules ./node_modules
COPY --from=build /app/migrations ./migrations
COPY --from=build /app/dist ./dist
# `node`, as a number: Kubernetes cannot tell from a name that it is not root.
USER 1000
VOLUME /data
EXPOSE 8787
# Ten minutes, as for Kubernetes: a start may have a long migration to do. The first success ends them. Without
# NODE_OPTIONS, as an agent that is for the gateway (OpenTelemetry's) takes each check a second, and may take all three;
# and without NODE_USE_ENV_PROXY, by which the check would ask HTTP_PROXY for 127.0.0.1.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10m \
  CMD ["env", "-u", "NODE_OPTIONS", "-u", "NODE_USE_ENV_PROXY", "node", "-e", "fetch('http://127.0.0.1:'+(process.env.BATON_PORT||8787)+'/healthz').then(r=>process.exit(r.ok?0:1),()=>process.exit(1))"]
# Node as process 1 gets SIGTERM itself and drains; no shell is in between.
CMD ["node", "--enable-source-maps", "dist/src/server.js"]
